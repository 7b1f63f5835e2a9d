-- Forgets a relay that stops. Walks the primary key; locks the relay's row.
DELETE FROM :"schema".relays WHERE id = $1::uuid;
