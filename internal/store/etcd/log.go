// What etcd has to say, in our log.
package etcd

import (
	"context"
	"log/slog"
	"maps"
	"slices"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// zapTo makes a logger of etcd's kind. What etcd informs of is for those who debug it; its warnings and errors are ours.
func zapTo(log *slog.Logger) *zap.Logger { return zap.New(&core{log: log}) }

// quietTo is for clients: what they warn of they also return, or get over by themselves.
func quietTo(log *slog.Logger) *zap.Logger { return zap.New(&core{log: log, quiet: true}) }

// core implements zapcore.Core.
type core struct {
	log    *slog.Logger
	quiet  bool
	fields []zapcore.Field
}

func (c *core) level(level zapcore.Level) slog.Level {
	switch {
	case c.quiet || level < zapcore.WarnLevel:
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
	if c.Enabled(entry.Level) {
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
