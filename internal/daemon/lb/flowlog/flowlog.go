// Package flowlog writes one line per connection that has left a table.
package flowlog

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/linux/connections"
)

// Implementation constants.
const (
	queueSize     = 1 << 16 // connections that may wait to be written
	bufferSize    = 1 << 16 // bytes
	flushInterval = 250 * time.Millisecond
	fileMode      = 0o640
	standardOut   = "-"
)

// Why a connection is not in the log.
const (
	dropQueue = iota // the writer could not follow, or had ended
	dropFile         // the file could not be written
	dropGone         // its service was removed
	dropReasons
)

var dropNames = [dropReasons]string{dropQueue: "queue", dropFile: "file", dropGone: "service_gone"}

// Log is a file of such lines. What it cannot write at once or soon it drops, and counts: nobody waits for it. nil is a log that nobody
// keeps. Tell, Gone and Counts are safe for concurrent use.
type Log struct {
	path  string
	node  string
	log   *slog.Logger
	queue chan record // never closed: requests may still sweep when the daemon ends
	done  chan struct{}

	file    *lineFile
	writer  *bufio.Writer
	encoder *json.Encoder
	pending uint64 // lines in writer
	broken  bool   // the last attempt to write failed
	stuck   bool   // the last attempt to make a new file failed

	written atomic.Uint64
	dropped [dropReasons]atomic.Uint64
}

// record is a connection that has ended, and when that was found.
type record struct {
	connections.Connection
	at              time.Time
	service, server string // names
	reason          connections.EndReason
	reclaimed       bool
}

// Open opens a file to append to, or standard output (-). An empty path is no log.
func Open(path, node string, log *slog.Logger) (*Log, error) {
	if path == "" {
		return nil, nil
	}
	l := &Log{path: path, node: node, log: log, queue: make(chan record, queueSize), done: make(chan struct{})}
	file := os.Stdout
	if path != standardOut {
		var err error
		if file, err = openLogFile(path); err != nil {
			return nil, fmt.Errorf("open the flow log: %w: name a file in a directory that exists, or - for standard output", err)
		}
	}
	l.writeTo(&lineFile{File: file})
	return l, nil
}

// lineFile remembers whether what was written to it ends within a line.
type lineFile struct {
	*os.File
	torn bool
}

func (f *lineFile) Write(text []byte) (int, error) {
	n, err := f.File.Write(text)
	if n > 0 {
		f.torn = text[n-1] != '\n'
	}
	return n, err
}

// writeTo begins anew: writer and encoder remember their errors for ever.
func (l *Log) writeTo(file *lineFile) {
	l.file, l.writer = file, bufio.NewWriterSize(file, bufferSize)
	l.encoder = json.NewEncoder(l.writer)
}

func openLogFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, fileMode)
}

// Add hands a connection over. It never waits, after Close neither. reclaimed: the data path took its index.
func (l *Log) Add(service, server string, ended *connections.Connection, reason connections.EndReason, reclaimed bool) {
	if l == nil {
		return
	}
	select {
	case <-l.done:
		l.dropped[dropQueue].Add(1)
		return
	default:
	}
	select {
	case l.queue <- record{*ended, time.Now(), service, server, reason, reclaimed}:
	default:
		l.dropped[dropQueue].Add(1)
	}
}

// Gone counts a connection whose service was removed before anybody could tell of it.
func (l *Log) Gone() { l.dropped[dropGone].Add(1) }

// Counts tells how many connections were written, and how many were not, by where they were lost.
func (l *Log) Counts() (written uint64, dropped map[string]uint64) {
	dropped = map[string]uint64{}
	for i, where := range dropNames {
		dropped[where] = l.dropped[i].Load()
	}
	return l.written.Load(), dropped
}

// Close lets Run end.
func (l *Log) Close() { close(l.done) }

// Run writes until Close, and then what still waits.
func (l *Log) Run() {
	ticker := time.NewTicker(flushInterval)
	defer ticker.Stop()
	for {
		select {
		case r := <-l.queue:
			l.write(&r)
		case <-ticker.C:
			l.flush()
			l.follow()
		case <-l.done:
			l.finish()
			return
		}
	}
}

func (l *Log) finish() {
	for {
		select {
		case r := <-l.queue:
			l.write(&r)
			continue
		default:
		}
		l.flush()
		if l.path != standardOut {
			l.file.Close()
		}
		return
	}
}

func (l *Log) write(r *record) {
	l.pending++
	if err := l.encoder.Encode(r.line(l.node)); err != nil {
		l.fail(err)
	}
}

// line is the record as it is written. First is known to a second or so, and Last lies after it.
func (r *record) line(node string) api.EndedConnection {
	return api.EndedConnection{
		Node: node, Service: r.service, Server: r.server, ID: r.Server, Client: r.Client,
		First: r.at.Add(-r.Connection.First).UTC().Truncate(time.Millisecond), Last: r.at.Add(-r.Connection.Last).UTC().Truncate(time.Millisecond),
		Duration: api.InSeconds((r.Connection.First - r.Connection.Last).Round(time.Millisecond)),
		Packets:  r.Packets, Bytes: r.Bytes, Reason: r.reason.String(), Reclaimed: r.reclaimed, Suspect: r.Suspect,
	}
}

func (l *Log) flush() {
	if l.pending == 0 {
		return
	}
	if err := l.writer.Flush(); err != nil {
		l.fail(err)
		return
	}
	l.written.Add(l.pending)
	l.pending = 0
	if l.broken {
		l.broken = false
		l.log.Info("the flow log is written again", "file", l.path)
	}
}

// fail gives up what waits. If its last line is there in part, the next begins on one of its own.
func (l *Log) fail(err error) {
	l.dropped[dropFile].Add(l.pending)
	l.pending = 0
	l.writeTo(l.file)
	if l.file.torn {
		l.writer.WriteByte('\n')
	}
	if !l.broken {
		l.broken = true
		l.log.Error("the flow log cannot be written: connections that end are not in it", "file", l.path, "error", err)
	}
}

// follow goes on in a new file when the old one was renamed or removed, as logrotate does.
func (l *Log) follow() {
	if l.path == standardOut {
		return
	}
	there, err := os.Stat(l.path)
	is, fileErr := l.file.Stat()
	if err == nil && fileErr == nil && os.SameFile(there, is) || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return
	}
	file, err := openLogFile(l.path)
	if err != nil {
		if !l.stuck {
			l.log.Error("the flow log goes on in the file that was renamed: no new one can be made", "file", l.path, "error", err)
		}
		l.stuck = true
		return
	}
	l.stuck = false
	l.file.Close()
	l.writeTo(&lineFile{File: file})
}
