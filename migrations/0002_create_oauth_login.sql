-- Logins on their way: any replica may finish what another began. The state itself is not kept, only its
-- SHA-256; the PKCE verifier is sealed.

create table oauth_login (
  state_hash text primary key,
  owner text not null,
  provider text not null,
  mode text not null check (mode in ('loopback', 'paste', 'device')),
  redirect_uri text not null,
  sealed bytea not null,
  state text not null default 'pending' check (state in ('pending', 'taken', 'done', 'failed')),
  credential_id text,
  error text,
  -- Who asks the vendor for a device login's grant has the place until then
  polled_until timestamptz,
  expires_at timestamptz not null,
  created_at timestamptz not null default clock_timestamp()
);
create index oauth_login_expiry on oauth_login (expires_at);
create index oauth_login_owner on oauth_login (owner) where state = 'pending';

create function oauth_login_json(l oauth_login) returns json
language sql stable as $$
  select json_build_object(
    'state_hash', l.state_hash, 'owner', l.owner, 'provider', l.provider, 'mode', l.mode,
    'redirect_uri', l.redirect_uri, 'sealed', encode(l.sealed, 'base64'), 'state', l.state,
    'credential_id', l.credential_id, 'error', l.error, 'expires_at', rfc3339(l.expires_at),
    'is_expired', l.expires_at <= clock_timestamp()
  )
$$;

-- The background refresh looks for what ends soon.
create index credential_expiry on credential (expires_at) where kind = 'oauth' and state = 'active';
