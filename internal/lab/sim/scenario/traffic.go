package scenario

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/ballast-lb/ballast/internal/lab/data"
	"github.com/ballast-lb/ballast/internal/yamltree"
)

// Implementation constants of files.
const (
	maxRows     = 5_000_000
	nsPerSecond = float64(time.Second)
	maxSeconds  = float64(maxLength / time.Second)
)

func (r *reader) traffic(node *yaml.Node, path string, traffic *Traffic) {
	var connections float64
	traffic.Lifetimes = data.WebDurations().Scaled(1e-6)
	r.Mapping(node, path, map[string]yamltree.Value{
		"rate":        r.number(&traffic.Rate, 0, maxRate),
		"connections": r.number(&connections, 1, maxLive),
		"lifetimes":   r.times(&traffic.Lifetimes, shapes),
		"trace":       func(node *yaml.Node, path string) { traffic.Trace = r.trace(node, path) },
		"work":        r.times(&traffic.Work, workShapes),
		"load":        r.number(&traffic.Load, 0.001, 10),
	})
	if r.Failed() > 0 {
		return
	}
	if r.Has(path + ".work") {
		r.oneOf(path, "rate", "load")
		return
	}
	r.oneOf(path, "rate", "connections", "trace")
	if r.Has(path+".trace") && r.Has(path+".lifetimes") {
		r.FailAt(path+".lifetimes", "remove it", "the trace has them")
	}
	if traffic.Trace != nil {
		traffic.Lifetimes = lasting(traffic.Trace)
	}
	if connections > 0 {
		traffic.Rate = connections / traffic.Lifetimes.Mean()
	}
}

// oneOf objects where not exactly one of some keys is given.
func (r *reader) oneOf(path string, keys ...string) {
	given := 0
	for _, key := range keys {
		if r.Has(path + "." + key) {
			given++
		}
	}
	if last := len(keys) - 1; given != 1 {
		r.FailAt(path, "give one of "+strings.Join(keys[:last], ", ")+" and "+keys[last], "%d of them", given)
	}
}

// trace reads connections: the columns start and duration, in seconds.
func (r *reader) trace(node *yaml.Node, path string) []Connection {
	name, ok := r.Scalar(node, path)
	if !ok {
		return nil
	}
	var trace []Connection
	for _, row := range r.columns(name, path, "start", "duration") {
		life := max(row[1], leastTime.Seconds())
		trace = append(trace, Connection{Start: int64(row[0] * nsPerSecond), Life: int64(life * nsPerSecond)})
	}
	slices.SortStableFunc(trace, func(a, b Connection) int { return cmp.Compare(a.Start, b.Start) })
	return trace
}

// lasting is the longest life of a trace, as a distribution: all that a world of recorded connections wants to know of lifetimes.
func lasting(trace []Connection) data.Distribution {
	longest := slices.MaxFunc(trace, func(a, b Connection) int { return cmp.Compare(a.Life, b.Life) }).Life
	return data.Distribution{Points: []data.Point{{Value: float64(longest) / nsPerSecond, UpTo: 1}}}
}

// columns reads the named columns of a CSV file: numbers of seconds from 0.
func (r *reader) columns(name, path string, columns ...string) (rows [][]float64) {
	text, err := r.open(name)
	if err != nil {
		r.FailAt(path, "give the name of a file, as seen from this one", "%v", err)
		return nil
	}
	reader := csv.NewReader(bytes.NewReader(text))
	reader.Comment, reader.ReuseRecord = '#', true
	at, err := places(reader, columns)
	for err == nil {
		var record []string
		if record, err = reader.Read(); err != nil {
			break
		}
		row := make([]float64, len(at))
		for i, column := range at {
			row[i], err = strconv.ParseFloat(record[column], 64)
			if err != nil || !(row[i] >= 0 && row[i] <= maxSeconds) {
				line, _ := reader.FieldPos(column)
				r.FailAt(path, fmt.Sprintf("give seconds from 0 to %g", maxSeconds), "%s:%d: %s %q is not such a number", name, line, columns[i], record[column])
				return nil
			}
		}
		if rows = append(rows, row); len(rows) > maxRows {
			r.FailAt(path, fmt.Sprintf("give at most %d", maxRows), "%s has more lines", name)
			return nil
		}
	}
	if !errors.Is(err, io.EOF) {
		r.FailAt(path, "write CSV with a line of column names first", "%s: %v", name, err)
		return nil
	}
	if len(rows) == 0 {
		r.FailAt(path, "give at least one", "%s has no lines", name)
	}
	return rows
}

// places reads the line of names and finds columns in it.
func places(reader *csv.Reader, columns []string) (at []int, err error) {
	names, err := reader.Read()
	if err != nil {
		return nil, err
	}
	for _, column := range columns {
		i := slices.Index(names, column)
		if i < 0 {
			return nil, fmt.Errorf("there is no column %q in %q", column, names)
		}
		at = append(at, i)
	}
	return at, nil
}
