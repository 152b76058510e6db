-- A tool that was switched off stays so when its server lists it again, or its connector has another name, for as
-- long as the connector is bound. By the server's own names.

alter table binding add column off text[] not null default '{}';

-- [{connector, alias, off}] in the order of binding.
create or replace function bindings_json(the_session text) returns json
language plpgsql stable as $$
begin
  return (
    select coalesce(
             json_agg(json_build_object(
               'connector', connector_json(c), 'alias', b.alias, 'off', b.off
             ) order by b.place),
             '[]'
           )
      from binding b join connector c on c.id = b.connector_id
     where b.session_id = the_session
  );
end
$$;
