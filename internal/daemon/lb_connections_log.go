package daemon

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

// Implementation constants of the flow log.
const (
	flowLogQueue  = 1 << 16 // connections that may wait to be written
	flowLogBuffer = 1 << 16 // bytes
	flowLogFlush  = 250 * time.Millisecond
	flowLogMode   = 0o640
	standardOut   = "-"
)

// Why a connection is not in the log.
const (
	dropQueue = iota // the writer could not follow, or had ended
	dropFile         // the file could not be written
	dropGone         // its service was removed
	dropReasons
)

// flowLog writes one line per connection that has left a table. What it cannot write at once or soon it drops, and counts: nobody waits
// for it. nil is a log that nobody keeps.
type flowLog struct {
	path  string
	node  string
	log   *slog.Logger
	queue chan flowRecord // never closed: requests may still sweep when the daemon ends
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

// flowRecord is a connection that has ended, and when that was found.
type flowRecord struct {
	connections.Connection
	at        time.Time
	table     *serviceTable
	reason    connections.EndReason
	reclaimed bool
}

// openFlowLog opens a file to append to, or standard output (-). An empty path is no log.
func openFlowLog(path, node string, log *slog.Logger) (*flowLog, error) {
	if path == "" {
		return nil, nil
	}
	l := &flowLog{path: path, node: node, log: log, queue: make(chan flowRecord, flowLogQueue), done: make(chan struct{})}
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
func (l *flowLog) writeTo(file *lineFile) {
	l.file, l.writer = file, bufio.NewWriterSize(file, flowLogBuffer)
	l.encoder = json.NewEncoder(l.writer)
}

func openLogFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, flowLogMode)
}

// tell hands a connection over. It never waits, and is safe for concurrent use, after close too.
func (l *flowLog) tell(t *serviceTable, ended *connections.Connection, reason connections.EndReason, reclaimed bool) {
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
	case l.queue <- flowRecord{*ended, time.Now(), t, reason, reclaimed}:
	default:
		l.dropped[dropQueue].Add(1)
	}
}

// close lets run end.
func (l *flowLog) close() { close(l.done) }

// run writes until close, and then what still waits.
func (l *flowLog) run() {
	ticker := time.NewTicker(flowLogFlush)
	defer ticker.Stop()
	for {
		select {
		case record := <-l.queue:
			l.write(&record)
		case <-ticker.C:
			l.flush()
			l.follow()
		case <-l.done:
			l.finish()
			return
		}
	}
}

func (l *flowLog) finish() {
	for {
		select {
		case record := <-l.queue:
			l.write(&record)
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

func (l *flowLog) write(r *flowRecord) {
	l.pending++
	if err := l.encoder.Encode(r.line(l.node)); err != nil {
		l.fail(err)
	}
}

// line is the record as it is written. First is known to a second or so, and Last lies after it.
func (r *flowRecord) line(node string) api.EndedConnection {
	return api.EndedConnection{
		Node: node, Service: r.table.service, Server: r.table.servers[r.Server], ID: r.Server, Client: r.Client,
		First: r.at.Add(-r.Connection.First).UTC().Truncate(time.Millisecond), Last: r.at.Add(-r.Connection.Last).UTC().Truncate(time.Millisecond),
		Duration: api.InSeconds((r.Connection.First - r.Connection.Last).Round(time.Millisecond)),
		Packets:  r.Packets, Bytes: r.Bytes, Reason: r.reason.String(), Reclaimed: r.reclaimed, Suspect: r.Suspect,
	}
}

func (l *flowLog) flush() {
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
func (l *flowLog) fail(err error) {
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
func (l *flowLog) follow() {
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
