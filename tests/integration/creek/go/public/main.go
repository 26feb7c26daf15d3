// Creek's public client, as it is. Prints what it reads, a JSON document a line.
//
//	public URL NAMESPACE wal DATABASE SCHEMA.TABLE COUNT
//	public URL NAMESPACE snapshot DATABASE SCHEMA.TABLE
//	public URL NAMESPACE last-schema DATABASE SCHEMA.TABLE
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/modfin/creek"
)

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

func main() {
	url, namespace, verb, database, table := os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5]
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := creek.NewClient(url, namespace).Connect()
	check(err)
	switch verb {
	case "wal":
		count, err := strconv.Atoi(os.Args[6])
		check(err)
		stream, err := conn.SteamWAL(ctx, database, table)
		check(err)
		for range count {
			message, err := stream.Next(ctx)
			check(err)
			_, err = conn.GetSchema(ctx, message.Fingerprint)
			check(err)
			show(message)
		}
	case "snapshot":
		reader, err := conn.Snapshot(ctx, database, table)
		check(err)
		show(reader.Header())
		for {
			row, err := reader.Next()
			if errors.Is(err, io.EOF) {
				return
			}
			check(err)
			show(row)
		}
	case "last-schema":
		document, err := conn.GetLastSchema(ctx, database, table)
		check(err)
		show(document)
	default:
		log.Fatalf("there is no %s", verb)
	}
}
