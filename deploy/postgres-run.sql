-- What a DBA runs once, for an example table.
CREATE TABLE users (id serial PRIMARY KEY, name text NOT NULL, email text);
CREATE PUBLICATION shop FOR TABLE users;
CREATE USER tailrace WITH REPLICATION PASSWORD 'tailrace';
GRANT SELECT ON users TO tailrace;
GRANT pg_read_all_stats TO tailrace;
-- Last: it keeps what is committed from here on.
SELECT pg_create_logical_replication_slot('tailrace', 'pgoutput');
