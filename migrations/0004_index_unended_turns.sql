-- How many turns an owner has under way (the limit BATON_TURNS_PER_OWNER).
create index turn_owner_unended on turn (owner) where state in ('queued', 'running');
