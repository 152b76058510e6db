-- A login whose token has ended opens no turn unseen: whether something renews it stands in its secret, so choose.ts
-- looks at it. Not immutable any more, since it asks the clock.
create function serves(credential json) returns boolean
language sql stable as $$
  select credential ->> 'state' = 'active'
     and coalesce((credential ->> 'expires_at')::timestamptz > clock_timestamp(), true)
$$;

create or replace function has_credential(place session, wanted text, named json, preferred json, environment jsonb)
returns boolean
language sql stable as $$
  select case
    when place.credential_id is not null and wanted = place.provider
      then coalesce(named ->> 'provider' = wanted and serves(named), false)
    when preferred is null then environment ? wanted
    else serves(preferred)
  end
$$;
