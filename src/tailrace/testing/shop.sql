-- The sample shop: what `tailrace demo` and the examples capture.

CREATE TYPE order_status AS ENUM ('new', 'paid', 'shipped', 'returned');

CREATE TABLE customers (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    email     text NOT NULL,
    name      text NOT NULL,
    vip       boolean NOT NULL DEFAULT false,
    profile   jsonb NOT NULL DEFAULT '{}',
    joined_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE products (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        text NOT NULL,
    price       numeric(10, 2) NOT NULL,
    stock       integer NOT NULL,
    tags        text[] NOT NULL DEFAULT '{}',
    description text NOT NULL
);
-- Out of line and uncompressed, so that an update of the stock leaves it unchanged in the stream.
ALTER TABLE products ALTER COLUMN description SET STORAGE EXTERNAL;

CREATE TABLE orders (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer_id bigint NOT NULL REFERENCES customers,
    status      order_status NOT NULL DEFAULT 'new',
    total       numeric(12, 2) NOT NULL,
    note        text,
    placed_at   timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE order_items (
    order_id   bigint NOT NULL REFERENCES orders,
    line       integer NOT NULL,
    product_id bigint NOT NULL REFERENCES products,
    quantity   integer NOT NULL,
    unit_price numeric(10, 2) NOT NULL,
    PRIMARY KEY (order_id, line)
);

-- Page views of today, emptied at night.
CREATE TABLE visits (
    id      uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    page    text NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
