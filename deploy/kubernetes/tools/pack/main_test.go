package main

import (
	"bytes"
	"os"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
)

// Promise: `make packages` packs the chart so that Helm reads it, with the version of the packages and of their images, and the same bytes each time.
func TestTheChartIsPacked(t *testing.T) {
	for version, want := range map[string][2]string{"1.2.3": {"1.2.3", "1.2.3"}, "1.2.3~rc.1": {"1.2.3-rc.1", "1.2.3-rc.1"}, "1.2.3+5.g8826f86": {"1.2.3+5.g8826f86", "1.2.3-5.g8826f86"},
		"0.0.0~2871.gabcdef0+dirty": {"0.0.0-2871.gabcdef0+dirty", "0.0.0-2871.gabcdef0-dirty"}} {
		var packed [2][]byte
		for i := range packed {
			path, err := pack("../../chart", t.TempDir(), version, "1767225600")
			if err != nil {
				t.Fatal(err)
			}
			if packed[i], err = os.ReadFile(path); err != nil {
				t.Fatal(err)
			}
			chart, err := loader.LoadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := chart.Validate(); err != nil || chart.Metadata.Version != want[0] || chart.Metadata.AppVersion != want[1] {
				t.Errorf("%s: %v, %s, %s", version, err, chart.Metadata.Version, chart.Metadata.AppVersion)
			}
			if len(chart.Templates) < 7 || len(chart.Schema) == 0 || len(chart.Files) < 2 {
				t.Errorf("%d templates, %d other files", len(chart.Templates), len(chart.Files))
			}
		}
		if !bytes.Equal(packed[0], packed[1]) {
			t.Errorf("%s: not the same bytes", version)
		}
	}
	if _, err := pack("../../chart", t.TempDir(), "1.2.3", ""); err == nil {
		t.Error("packed without a time")
	}
}
