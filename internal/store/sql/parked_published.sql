-- Forgets parked events that the sink has confirmed. Walks the primary key; locks the rows.
DELETE FROM :"schema".parked WHERE id = ANY ($1::bigint[]);
