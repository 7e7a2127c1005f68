// Consume from Kafka into PostgreSQL, each event once.  ../../consume.py kills it.
//
// The lines between the marks are those of doc/howto/kafka-consume.md.

// >>> program
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math/rand"
	"os"
	"os/signal"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	maxBatch = 50
	maxTries = 20

	restore = `
		INSERT INTO kafka_offsets VALUES ($1, $2, $3, -2)
		ON CONFLICT (consumer_group, topic, kafka_partition) DO UPDATE SET next_offset = kafka_offsets.next_offset
		RETURNING next_offset`
	store = `
		UPDATE kafka_offsets SET next_offset = $1
		WHERE consumer_group = $2 AND topic = $3 AND kafka_partition = $4 AND next_offset = $5`
	claim  = `SELECT idempotency.claim_event(convert_from($1::bytea, 'UTF8')::uuid, consumer => $2, wait => '1 s')::text`
	charge = `
		INSERT INTO accounts
		VALUES (convert_from($1::bytea, 'UTF8'), (convert_from($2::bytea, 'UTF8')::jsonb->>'total')::numeric)
		ON CONFLICT (customer) DO UPDATE SET owed = accounts.owed + EXCLUDED.owed`
	enqueue = `
		SELECT idempotency.outbox_enqueue('account', convert_from($1::bytea, 'UTF8'), 'AccountCharged',
			jsonb_build_object('cause', convert_from($2::bytea, 'UTF8')::uuid))`
	complete = `SELECT idempotency.complete_event(convert_from($1::bytea, 'UTF8')::uuid, consumer => $2)`
	reject   = `
		INSERT INTO rejected_messages (consumer_group, topic, kafka_partition, kafka_offset, event_id, key, value, sqlstate, error)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`
)

var (
	group   = os.Getenv("KAFKA_GROUP")
	errBusy = errors.New("another transaction has the event right now")
)

type partition struct {
	topic  string
	number int32
}

// billing has a connection and, for each partition, the offset that it stored.
// A rebalance runs beside the main loop; the mutex keeps the two apart.
type billing struct {
	sync.Mutex
	conn     *pgx.Conn
	position map[partition]int64
}

// assigned goes on where the database says; a transaction of the former owner
// has ended by then.
func (b *billing) assigned(ctx context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	b.Lock()
	defer b.Unlock()
	for topic, numbers := range offsets {
		for number := range numbers {
			var next int64
			if err := b.conn.QueryRow(ctx, restore, group, topic, number).Scan(&next); err != nil {
				return nil, err
			}
			b.position[partition{topic, number}] = next
			numbers[number] = kgo.NewOffset().At(next) // -2 is the start
		}
	}
	return offsets, nil
}

// handle makes the effect of one message, or its row in rejected_messages.
func handle(ctx context.Context, tx pgx.Tx, m *kgo.Record) error {
	var id []byte
	for _, header := range m.Headers {
		if header.Key == "id" {
			id = header.Value
		}
	}
	err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { // a savepoint
		var verdict string
		if err := tx.QueryRow(ctx, claim, id, group).Scan(&verdict); err != nil {
			return err
		}
		if verdict == "duplicate" {
			return nil
		}
		if verdict != "claimed" {
			return errBusy
		}
		if _, err := tx.Exec(ctx, charge, m.Key, m.Value); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, enqueue, m.Key, id); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, complete, id, group)
		return err
	})
	if state := sqlstate(err); strings.HasPrefix(state, "22") || strings.HasPrefix(state, "23") { // this message will never do
		_, err = tx.Exec(ctx, reject, group, m.Topic, m.Partition, m.Offset, id, m.Key, m.Value, state, err.Error())
	}
	return err
}

// handleBatch makes the effects of the messages and stores the offsets behind
// them, in one transaction.
func (b *billing) handleBatch(ctx context.Context, messages []*kgo.Record) error {
	ends := map[partition]int64{}
	for _, m := range messages {
		ends[partition{m.Topic, m.Partition}] = m.Offset + 1
	}
	var partitions []partition
	for p := range ends {
		partitions = append(partitions, p)
	}
	sort.Slice(partitions, func(i, j int) bool {
		a, b := partitions[i], partitions[j]
		return a.topic < b.topic || a.topic == b.topic && a.number < b.number
	})
	err := pgx.BeginFunc(ctx, b.conn, func(tx pgx.Tx) error {
		for _, p := range partitions {
			tag, err := tx.Exec(ctx, store, ends[p], group, p.topic, p.number, b.position[p])
			if err != nil {
				return err
			}
			if tag.RowsAffected() != 1 {
				return fmt.Errorf("%s/%d has another owner now", p.topic, p.number)
			}
		}
		for _, m := range messages {
			if err := handle(ctx, tx, m); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		for p, end := range ends {
			b.position[p] = end
		}
	}
	return err
}

func (b *billing) handleWithRetries(ctx context.Context, messages []*kgo.Record) error {
	b.Lock()
	defer b.Unlock()
	for tries := 1; ; tries++ {
		err := b.handleBatch(ctx, messages)
		if tries == maxTries || !errors.Is(err, errBusy) && !strings.HasPrefix(sqlstate(err), "40") {
			return err
		}
		log.Print("again: ", err)
		time.Sleep(time.Duration(rand.Intn(200)) * time.Millisecond)
	}
}

func sqlstate(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

func run() error {
	ctx := context.Background()
	stop, cancel := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	conn, err := pgx.Connect(ctx, "")
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "SET idle_in_transaction_session_timeout = '10s'"); err != nil {
		return err
	}
	b := &billing{conn: conn, position: map[partition]int64{}}
	session := 45 * time.Second
	if ms, err := strconv.Atoi(os.Getenv("KAFKA_SESSION_TIMEOUT")); err == nil {
		session = time.Duration(ms) * time.Millisecond
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(os.Getenv("KAFKA_BROKERS"), ",")...),
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(os.Getenv("KAFKA_TOPIC")),
		kgo.SessionTimeout(session), kgo.HeartbeatInterval(session/10),
		kgo.DisableAutoCommit(), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.BlockRebalanceOnPoll(), kgo.AdjustFetchOffsetsFn(b.assigned))
	if err != nil {
		return err
	}
	defer client.CloseAllowingRebalance()
	for {
		fetches := client.PollRecords(stop, maxBatch)
		if stop.Err() != nil {
			return nil
		}
		if err := fetches.Err(); err != nil {
			return err
		}
		if fetches.NumRecords() > 0 {
			if err := b.handleWithRetries(ctx, fetches.Records()); err != nil {
				return err
			}
		}
		client.AllowRebalance()
	}
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

// <<<
