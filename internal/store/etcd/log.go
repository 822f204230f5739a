// What etcd has to say, in our log.
package etcd

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// zapTo makes a logger of etcd's kind. What etcd informs of is for those who debug it; its warnings and errors are ours, unless quiet:
// a client also returns what it warns of or gets over it by itself, and an etcd that is being stopped complains of that.
func zapTo(log *slog.Logger, quiet *atomic.Bool, options ...zap.Option) *zap.Logger {
	return zap.New(&core{log: log, quiet: quiet}, options...)
}

// usual is what etcd always warns of when it is embedded: its advice is for servers of HTTP.
const usual = "Running http and grpc server on single port. This is not recommended for production."

// database is the logger of etcd's database, which returns the errors that it logs.
const database = "bbolt"

// core implements zapcore.Core.
type core struct {
	log    *slog.Logger
	quiet  *atomic.Bool
	fields []zapcore.Field
}

// ofPeers are parts of what etcd says again and again of a peer that does not answer, and of members that come and go. Who is alive is
// on the list of controllers; what fails of the rest is returned as an error.
var ofPeers = []string{"peer", "prober", "failed to get version", "failed to send out heartbeat", "storage version", "schema version", "promote",
	"configuration change", "removed member", "process Raft message", "server error", "data-dir used by this member", "setting up serving", "publish", "ReadIndex", "read index"}

func aboutPeers(entry *zapcore.Entry) bool {
	return entry.Level < zapcore.DPanicLevel && slices.ContainsFunc(ofPeers, func(part string) bool { return strings.Contains(entry.Message, part) })
}

func (c *core) level(level zapcore.Level) slog.Level {
	switch {
	case c.quiet.Load() || level < zapcore.WarnLevel:
		return slog.LevelDebug
	case level < zapcore.ErrorLevel:
		return slog.LevelWarn
	}
	return slog.LevelError
}

func (c *core) Enabled(level zapcore.Level) bool {
	return c.log.Enabled(context.Background(), c.level(level))
}

func (c *core) With(fields []zapcore.Field) zapcore.Core {
	return &core{c.log, c.quiet, slices.Concat(c.fields, fields)}
}

func (c *core) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	said := entry.LoggerName == database || entry.Level >= zapcore.PanicLevel // by etcd; by the end of the process
	if c.Enabled(entry.Level) && entry.Message != usual && !said && !aboutPeers(&entry) {
		return checked.AddCore(entry, c)
	}
	return checked
}

func (c *core) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	encoder := zapcore.NewMapObjectEncoder()
	for _, field := range slices.Concat(c.fields, fields) {
		field.AddTo(encoder)
	}
	var attributes []slog.Attr
	for _, key := range slices.Sorted(maps.Keys(encoder.Fields)) {
		attributes = append(attributes, slog.Any(key, encoder.Fields[key]))
	}
	c.log.LogAttrs(context.Background(), c.level(entry.Level), "etcd: "+entry.Message, attributes...)
	return nil
}

func (c *core) Sync() error { return nil }
