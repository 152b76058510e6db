-- A turn that goes on after it waited brings what its last owner committed and may not have said, as one that is taken
-- over does. Replicas of the version before do not ask for it.

-- {turn, epoch, announce}, or null while an approval is open or another owner has the session.
create or replace function resume_awaiting(the_turn text, new_owner text, seconds float8) returns json
language plpgsql as $$
declare
  place text := (select session_id from turn where id = the_turn);
  target turn;
begin
  if not lock_session(null, place) then
    return null;
  end if;
  select * into target from turn where id = the_turn and state = 'awaiting_input' for no key update;
  if not found then
    return null;
  end if;
  perform from execution
    where turn_id = the_turn and state = 'awaiting_approval' and decision is null
      and not target.cancel_requested;
  if found then
    return null;
  end if;
  perform from session
    where id = place and lease_owner <> new_owner and lease_until > clock_timestamp();
  if found then
    return null;
  end if;
  update turn set state = 'running' where id = the_turn returning * into target;
  return json_build_object(
    'turn', turn_json(target), 'announce', target.announce, 'epoch', take_lease(place, new_owner, seconds)
  );
end
$$;
