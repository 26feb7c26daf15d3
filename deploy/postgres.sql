-- What a DBA runs once, for an example table.
CREATE TABLE users (id serial PRIMARY KEY, name text NOT NULL, email text);
CREATE PUBLICATION my_pub FOR TABLE users;
CREATE USER bridge_reader WITH REPLICATION PASSWORD 'bridge';
GRANT SELECT ON users TO bridge_reader;
