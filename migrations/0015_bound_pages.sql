-- Pages were bounded by their rows alone, and a row may be as large as a request's body. A page ends before the row with
-- which it would be longer than `most_bytes`, but has one at least. Then a null stands behind the last: there are more.
-- Rows are asked for as they are needed, so what stays behind is not read.
create function message_page(the_session text, after_seq bigint, most integer, most_bytes bigint)
returns setof json
language plpgsql stable as $$
declare
  found json;
  bytes bigint := 0;
begin
  for found in select body from message where session_id = the_session and seq > after_seq order by seq limit most loop
    if bytes > 0 and bytes + octet_length(found::text) > most_bytes then
      return next null;
      return;
    end if;
    bytes := bytes + octet_length(found::text);
    return next found;
  end loop;
end
$$;

create function turn_page(the_session text, before_id text, most integer, most_bytes bigint) returns setof json
language plpgsql stable as $$
declare
  t turn;
  found json;
  bytes bigint := 0;
begin
  for t in
    select * from turn where session_id = the_session and (before_id is null or id < before_id) order by id desc limit most
  loop
    found := turn_json(t);
    if bytes > 0 and bytes + octet_length(found::text) > most_bytes then
      return next null;
      return;
    end if;
    bytes := bytes + octet_length(found::text);
    return next found;
  end loop;
end
$$;
