-- A history is answered as one text, and there is a length (2^29 characters) of which a process of Node can take none:
-- it would end, and so would the next that takes the turn over. No provider takes a request of a quarter of that.
-- pg_column_size reads a value that was just made without a copy.
create or replace function history(the_session text, after_seq bigint) returns json
language plpgsql stable as $$
declare
  found json;
begin
  select coalesce(json_agg(body), '[]') into found
    from (select body from message where session_id = the_session and seq > after_seq order by seq) m;
  if pg_column_size(found) > 134217728 then
    raise 'the messages of % are longer than 128 MiB', the_session using errcode = 'BT001';
  end if;
  return found;
end
$$;
