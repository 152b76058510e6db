-- Pages were bounded by their rows alone, and a row may be as large as a request's body. A page ends before the row with
-- which it would be longer than `most_bytes`, but has one at least. Then a null stands behind the last: there are more.
-- Rows are asked for as they are needed, so what stays behind is not read.
create function within_bytes(rows_left refcursor, most_bytes bigint) returns setof json
language plpgsql as $$
declare
  body json;
  size integer;
  bytes bigint := 0;
begin
  loop
    fetch rows_left into body;
    exit when not found;
    size := octet_length(body::text);
    if bytes > 0 and bytes + size > most_bytes then
      return next null;
      exit;
    end if;
    bytes := bytes + size;
    return next body;
  end loop;
  close rows_left;
end
$$;

create function message_page(the_session text, after_seq bigint, most integer, most_bytes bigint) returns setof json
language plpgsql as $$
declare
  messages refcursor;
begin
  open messages for
    select m.body from message m where m.session_id = the_session and m.seq > after_seq order by m.seq limit most;
  return query select * from within_bytes(messages, most_bytes);
end
$$;

create function turn_page(the_session text, before_id text, most integer, most_bytes bigint) returns setof json
language plpgsql as $$
declare
  turns refcursor;
begin
  open turns for
    select turn_json(t) from turn t
     where t.session_id = the_session and (before_id is null or t.id < before_id) order by t.id desc limit most;
  return query select * from within_bytes(turns, most_bytes);
end
$$;
