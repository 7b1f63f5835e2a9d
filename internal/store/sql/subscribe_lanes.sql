-- Makes the lanes of a new subscription. Walks the primary key; locks the new rows.
INSERT INTO :"schema".lanes (subscription, lane)
SELECT $1::text, g FROM generate_series(0, $2::integer - 1) AS g
ON CONFLICT DO NOTHING;
