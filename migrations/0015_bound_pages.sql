-- Pages were bounded by their rows alone, and a row may be as large as a request's body. Every function below is read by
-- one list.

-- A page of messages ends before the message with which it would be longer than `most_bytes`, but has one at least. Then
-- a null stands behind the last: there are more. Rows are asked for as they are needed, so what stays behind is not read.
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

-- A turn as lists show it. What it was asked stays in its row, and is among its session's messages.
create function turn_line(t turn) returns json
language plpgsql stable as $$
begin
  t.input := '[]';
  t.context := '[]';
  return turn_json(t);
end
$$;
