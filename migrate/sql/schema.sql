-- The home of our own tables, unless it is there already.
CREATE SCHEMA IF NOT EXISTS :"schema";
