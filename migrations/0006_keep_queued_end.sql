-- A turn that ends in the queue keeps the word of its end until it is in the stream, as any other does. The
-- function of two arguments stays for replicas of the version before.

-- Ends a turn that never ran; whether it did.
create function end_queued(the_turn text, ending jsonb, announced json) returns boolean
language plpgsql as $$
begin
  perform lock_session(null, (select session_id from turn where id = the_turn));
  update turn
     set state = (ending ->> 'state')::turn_state, finish_reason = ending ->> 'finish_reason',
         error = (ending ->> 'error')::json, ended_at = clock_timestamp(), announce = announced
   where id = the_turn and state = 'queued';
  return found;
end
$$;
