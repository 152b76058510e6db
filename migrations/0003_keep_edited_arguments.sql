-- A person's edit of a call's arguments: what runs is what the ledger shows, without its secrets.

create or replace function decide_execution(visible_to text, the_turn text, the_call text, d jsonb) returns text
language plpgsql as $$
begin
  if not lock_session(visible_to, (select session_id from turn where id = the_turn)) then
    return null;
  end if;
  perform from execution where turn_id = the_turn and call_id = the_call;
  if not found then
    return null;
  end if;
  update execution
     set decision = (d ->> 'decision')::approval_decision, reason = d ->> 'reason', decided_by = d ->> 'by',
         sealed_arguments = decode(d ->> 'sealed_arguments', 'base64'),
         arguments = coalesce((d ->> 'arguments')::json, arguments)
   where turn_id = the_turn and call_id = the_call and state = 'awaiting_approval' and decision is null
     and (d ->> 'decision' = 'expired' or expires_at is null or expires_at > clock_timestamp());
  return case when found then 'decided' else 'not_awaiting' end;
end
$$;
