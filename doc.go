// Package outbox writes events into a table of PostgreSQL, in the transaction that makes them true.
// A relay (package relay, or the command commitrelay) moves committed events to Kafka,
// NATS, RabbitMQ and the like. So an event is sent if its transaction commits, and only then.
//
//	var events outbox.Writer // table public.outbox_events, JSON payloads
//
//	func Register(ctx context.Context, pool *pgxpool.Pool, name string) error {
//		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//			var id string
//			err := tx.QueryRow(ctx, `INSERT INTO users (name) VALUES ($1) RETURNING id`, name).Scan(&id)
//			if err != nil {
//				return err
//			}
//			body, err := json.Marshal(map[string]string{"id": id, "name": name})
//			if err != nil {
//				return err
//			}
//			return events.Write(ctx, tx, &outbox.Event{
//				AggregateType: "user", AggregateID: id, Type: "UserCreated", Payload: body,
//			})
//		})
//	}
//
// The tables are made by `commitrelay migrate up` or by package migrate. Writer.WriteSQL does the
// same in a transaction of database/sql. Other languages insert into the table:
//
//	INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload) VALUES ($1, $2, $3, $4)
//
// # What is promised
//
//   - Each committed event reaches its destination, or is kept with the reason why not.
//   - No event of a transaction that was rolled back is sent.
//   - Events of one key (AggregateType, AggregateID) first arrive in the order in which their
//     transactions committed, and those of one transaction in the order in which they were written.
//   - A Write that is refused by this package has sent nothing: the transaction is as usable as before.
//
// # What is not
//
//   - Transactions that overlap have no order. Whoever writes events of one aggregate from several
//     places locks the aggregate first (by changing its row, or SELECT ... FOR UPDATE) and writes
//     the event after that: then they do not overlap.
//   - Events of different keys have no order among each other.
//   - After a fault an event may arrive twice. Its ID is the same: consumers can tell.
//   - An event is sent soon after the commit, not at the commit.
package outbox
