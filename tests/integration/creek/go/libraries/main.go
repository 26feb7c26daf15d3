// A consumer of Creek's streams on the libraries that Creek's own client is built on: hamba/avro and
// nats.go. It does what that client does and prints what it reads, a JSON document a line.
//
//	libraries URL NAMESPACE wal DATABASE SCHEMA.TABLE COUNT
//	libraries URL NAMESPACE snapshot DATABASE SCHEMA.TABLE
//	libraries URL NAMESPACE last-schema DATABASE SCHEMA.TABLE
package main

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hamba/avro/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

type source struct {
	Name    string    `json:"name" avro:"name"`
	TxAt    time.Time `json:"tx_at" avro:"tx_at"`
	DB      string    `json:"db" avro:"db"`
	Schema  string    `json:"schema" avro:"schema"`
	Table   string    `json:"table" avro:"table"`
	TxID    uint32    `json:"tx_id" avro:"tx_id"`
	LastLSN string    `json:"last_lsn" avro:"last_lsn"`
	LSN     string    `json:"lsn" avro:"lsn"`
}

type event struct {
	Fingerprint string          `json:"fingerprint" avro:"fingerprint"`
	Source      source          `json:"source" avro:"source"`
	Op          string          `json:"op" avro:"op"`
	SentAt      time.Time       `json:"sent_at" avro:"sent_at"`
	Before      *map[string]any `json:"before" avro:"before"`
	After       *map[string]any `json:"after" avro:"after"`
}

type schemaDocument struct {
	Fingerprint string    `json:"fingerprint"`
	Schema      string    `json:"schema"`
	Source      string    `json:"source"`
	CreatedAt   time.Time `json:"created_at"`
}

type header struct {
	Fingerprint string    `json:"fingerprint"`
	Schema      string    `json:"schema"`
	TxID        uint32    `json:"tx_id"`
	LSN         string    `json:"lsn"`
	At          time.Time `json:"at"`
	ApproxRows  int       `json:"approx_rows"`
}

type reader struct {
	ctx       context.Context
	nc        *nats.Conn
	streams   map[string]jetstream.Stream
	namespace string
	schemas   map[string]avro.Schema
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func show(value any) {
	text, err := json.Marshal(value)
	check(err)
	fmt.Println(string(text))
}

func (r *reader) messages(kind, subject string) jetstream.MessagesContext {
	consumer, err := r.streams[kind].OrderedConsumer(
		r.ctx, jetstream.OrderedConsumerConfig{FilterSubjects: []string{subject}},
	)
	check(err)
	found, err := consumer.Messages()
	check(err)
	return found
}

func content(packet []byte) []byte {
	if len(packet) < 6 || binary.BigEndian.Uint16(packet) != 0 {
		log.Fatalf("no first packet: %x", packet)
	}
	if int(binary.BigEndian.Uint32(packet[2:6])) != len(packet)-6 {
		log.Fatalf("a packet of another length: %x", packet[:6])
	}
	return packet[6:]
}

func (r *reader) next(messages jetstream.MessagesContext) []byte {
	message, err := messages.Next()
	check(err)
	return content(message.Data())
}

func (r *reader) schema(fingerprint string) avro.Schema {
	if known, ok := r.schemas[fingerprint]; ok {
		return known
	}
	reply, err := r.nc.RequestWithContext(r.ctx, r.namespace+"._schema", []byte(fingerprint))
	check(err)
	var document schemaDocument
	check(json.Unmarshal(reply.Data, &document))
	parsed, err := avro.Parse(document.Schema)
	check(err)
	hash, err := parsed.FingerprintUsing(avro.CRC64Avro)
	check(err)
	if made := base64.URLEncoding.EncodeToString(hash); made != fingerprint {
		log.Fatalf("the schema of %s has the fingerprint %s", fingerprint, made)
	}
	r.schemas[fingerprint] = parsed
	return parsed
}

func (r *reader) wal(subject string, count int) {
	messages := r.messages("wal", subject)
	for range count {
		data := r.next(messages)
		if data[0] != 0xc3 || data[1] != 0x01 {
			log.Fatalf("no Avro object: %x", data[:2])
		}
		schema := r.schema(base64.URLEncoding.EncodeToString(data[2:10]))
		var found event
		check(avro.Unmarshal(schema, data[10:], &found))
		show(found)
	}
}

func (r *reader) snapshot(database, table string) {
	names := strings.SplitN(table, ".", 2)
	asked, err := json.Marshal(
		map[string]string{"database": database, "namespace": names[0], "table": names[1]},
	)
	check(err)
	ctx, cancel := context.WithTimeout(r.ctx, time.Second)
	defer cancel()
	reply, err := r.nc.RequestWithContext(ctx, r.namespace+"._snapshot", asked)
	check(err)
	messages := r.messages("snap", string(reply.Data))
	var first header
	check(json.Unmarshal(r.next(messages), &first))
	schema, err := avro.Parse(first.Schema)
	check(err)
	show(first)
	for {
		data := r.next(messages)
		if string(data) == "EOF" {
			return
		}
		var row map[string]any
		check(avro.Unmarshal(schema, data, &row))
		show(row)
	}
}

func (r *reader) lastSchema(subject string) {
	message, err := r.streams["schema"].GetLastMsgForSubject(r.ctx, subject)
	check(err)
	var document schemaDocument
	check(json.Unmarshal(content(message.Data), &document))
	show(document)
}

func main() {
	avro.Register(string(avro.String)+"."+string(avro.UUID), "")
	avro.Register(string(avro.Array), []any{})
	for _, namespace := range []string{"", "before.", "after."} {
		avro.Register(namespace+"infinity_modifier", "")
	}
	url, namespace, verb, database, table := os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5]
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	nc, err := nats.Connect(url)
	check(err)
	js, err := jetstream.New(nc)
	check(err)
	made := reader{
		ctx: ctx, nc: nc, namespace: namespace,
		streams: map[string]jetstream.Stream{}, schemas: map[string]avro.Schema{},
	}
	for _, kind := range []string{"wal", "snap", "schema"} {
		made.streams[kind], err = js.Stream(ctx, namespace+"_"+kind)
		check(err)
	}
	switch verb {
	case "wal":
		count, err := strconv.Atoi(os.Args[6])
		check(err)
		made.wal(fmt.Sprintf("%s.%s.wal.%s", namespace, database, table), count)
	case "snapshot":
		made.snapshot(database, table)
	case "last-schema":
		made.lastSchema(fmt.Sprintf("%s.%s.schema.%s", namespace, database, table))
	default:
		log.Fatalf("there is no %s", verb)
	}
}
