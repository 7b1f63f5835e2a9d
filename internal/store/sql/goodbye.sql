-- Forgets a relay that stops, and gives back what is still in its name: a lane that it took by a statement whose answer
-- never came, or could not give back itself.
-- Reads all of lanes, which is small; locks the relay's row and those of such lanes.
WITH back AS (
    UPDATE :"schema".lanes
    SET owner = NULL, lease_until = NULL
    WHERE owner = $1::uuid
)
DELETE FROM :"schema".relays WHERE id = $1::uuid;
