-- Makes the lanes of a new subscription, which begin at a position. Walks the primary key; locks the new rows.
INSERT INTO :"schema".lanes (subscription, lane, from_window)
SELECT $1::text, g, $3::bigint FROM generate_series(0, $2::integer - 1) AS g
ON CONFLICT DO NOTHING;
