-- Make the aggregates whose events the writers write. Their version numbers the events of each.
CREATE SCHEMA torture;
CREATE TABLE torture.aggregates (
  type    text,
  id      text,
  version bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (type, id)
) WITH (fillfactor = 50);
