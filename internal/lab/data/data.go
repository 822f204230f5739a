// Package data has what real connections, flows and servers were measured to be like. The first line of each file says where it
// is from.
package data

import (
	"embed"
	"encoding/csv"
	"fmt"
	"slices"
	"strconv"
)

//go:embed *.csv
var files embed.FS

// WebDurations are how long connections to web servers last, in microseconds (the experiments of Cheetah).
func WebDurations() Distribution {
	return mustRead("web_server_durations_cheetah.csv", "duration_us", false)
}

// FacebookDurations are how long flows of web servers last, in milliseconds (Roy et al. 2015).
func FacebookDurations() Distribution {
	return mustRead("web_server_durations_roy2015.csv", "duration_ms", true)
}

// SearchFlows are the sizes of flows in a data centre that serves a web search, in bytes.
func SearchFlows() Distribution { return mustRead("websearch_flow_sizes.csv", "size_bytes", true) }

// Downtimes are how long a server is away while it is upgraded, in seconds (SilkRoad). The last hundredth is very long.
func Downtimes() Distribution { return mustRead("server_downtime_silkroad.csv", "downtime_s", true) }

// mustRead reads a file that is part of the program. That it can be read is tested.
func mustRead(name, column string, smooth bool) Distribution {
	distribution, err := read(name, column, smooth)
	if err != nil {
		panic(err)
	}
	return distribution
}

// read returns the distribution of the values in a column; the column cdf has the cumulative probabilities.
func read(name, column string, smooth bool) (Distribution, error) {
	file, err := files.Open(name)
	if err != nil {
		return Distribution{}, err
	}
	defer file.Close()
	reader := csv.NewReader(file)
	reader.Comment = '#'
	rows, err := reader.ReadAll()
	if err != nil {
		return Distribution{}, fmt.Errorf("read %s: %w", name, err)
	}
	valueAt, upToAt := slices.Index(rows[0], column), slices.Index(rows[0], "cdf")
	if valueAt < 0 || upToAt < 0 {
		return Distribution{}, fmt.Errorf("read %s: no columns %s and cdf in %q", name, column, rows[0])
	}
	result := Distribution{Smooth: smooth}
	for _, row := range rows[1:] {
		value, err := strconv.ParseFloat(row[valueAt], 64)
		if err != nil {
			return Distribution{}, fmt.Errorf("read %s: %w", name, err)
		}
		upTo, err := strconv.ParseFloat(row[upToAt], 64)
		if err != nil {
			return Distribution{}, fmt.Errorf("read %s: %w", name, err)
		}
		result.Points = append(result.Points, Point{Value: value, UpTo: upTo})
	}
	return result, nil
}
