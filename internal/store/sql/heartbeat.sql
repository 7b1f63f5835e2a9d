-- Says that a relay ($1) still lives, and how it fares ($2). One that has said goodbye stays away: the statement may have
-- been broken off, and reach the server after it.
-- Walks the primary key; locks the relay's row.
UPDATE :"schema".relays SET heartbeat_at = now(), health = $2::jsonb WHERE id = $1::uuid RETURNING true;
