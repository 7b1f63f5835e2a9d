-- Registers a user.
INSERT INTO :"schema".users (email) VALUES ($1) RETURNING id, version;
