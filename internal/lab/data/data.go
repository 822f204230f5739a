// Package data has what real connections and flows were measured to be like. The first line of each file says where it is from.
package data

import (
	"embed"
	"encoding/csv"
	"fmt"
	"strconv"

	"github.com/ballast-lb/ballast/internal/lab/traffic"
)

//go:embed *.csv
var files embed.FS

// WebDurations are how long connections to web servers last, in microseconds (the experiments of Cheetah).
func WebDurations() traffic.Distribution { return mustRead("web_server_durations_cheetah.csv", false) }

// SearchFlows are the sizes of flows in a data centre that serves a web search, in bytes.
func SearchFlows() traffic.Distribution { return mustRead("websearch_flow_sizes.csv", true) }

// mustRead reads a file whose first column is the value and whose last is the cumulative probability. That it can be
// read is tested.
func mustRead(name string, smooth bool) traffic.Distribution {
	distribution, err := read(name, smooth)
	if err != nil {
		panic(err)
	}
	return distribution
}

func read(name string, smooth bool) (traffic.Distribution, error) {
	file, err := files.Open(name)
	if err != nil {
		return traffic.Distribution{}, err
	}
	defer file.Close()
	reader := csv.NewReader(file)
	reader.Comment = '#'
	rows, err := reader.ReadAll()
	if err != nil {
		return traffic.Distribution{}, fmt.Errorf("read %s: %w", name, err)
	}
	result := traffic.Distribution{Smooth: smooth}
	for _, row := range rows[1:] {
		value, err := strconv.ParseFloat(row[0], 64)
		if err != nil {
			return traffic.Distribution{}, fmt.Errorf("read %s: %w", name, err)
		}
		upTo, err := strconv.ParseFloat(row[len(row)-1], 64)
		if err != nil {
			return traffic.Distribution{}, fmt.Errorf("read %s: %w", name, err)
		}
		result.Points = append(result.Points, traffic.Point{Value: value, UpTo: upTo})
	}
	return result, nil
}
