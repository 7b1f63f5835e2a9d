-- Forgets parked events of a lane that the sink has confirmed: another lane's may have got their ids, if they were claimed on a
-- server whose last second is lost. Walks the primary key; locks the rows.
DELETE FROM :"schema".parked WHERE id = ANY ($3::bigint[]) AND subscription = $1::text AND lane = $2::integer;
