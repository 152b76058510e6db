-- Logins at MCP servers: one replica at a time refreshes a connector's token, and a token that was refreshed
-- is told from a changed connector, whose connections are made anew.
alter table connector
  add column secret_version bigint not null default 0,
  add column claimed_by text,
  add column claimed_until timestamptz;
