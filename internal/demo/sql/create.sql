-- The demo's own schema and its users. version counts the changes of a row, under the row's lock: it is the order
-- in which the transactions of one user commit.
CREATE SCHEMA :"schema";
CREATE TABLE :"schema".users (
    id              bigint          GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    email           text            NOT NULL,
    version         integer         NOT NULL DEFAULT 1
);
