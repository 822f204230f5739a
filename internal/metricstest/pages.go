package metricstest

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// Scrape is what daemons answered to Prometheus at one moment, by instance. Empty: it did not answer.
type Scrape map[string]string

// Implementation constants of ExpectPages.
const (
	scrapeInterval = 30 * time.Second
	lastScrapes    = 30 // for so many intervals the last scrape goes on
)

var sample = regexp.MustCompile(`(?m)^(ballast_\w+)(?:\{(.*)\})? (\S+)$`)

// ExpectPages has promtool evaluate the rules of deploy/prometheus over scrapes of running daemons, one scrape interval apart, of which the
// last goes on for 15 minutes: exactly the wanted alerts of severity page fire then, and none at any time where none is wanted. Counters that grew before the last scrape go on growing
// by as much. Without promtool nothing is evaluated.
func ExpectPages(t testing.TB, when string, want []string, scrapes ...Scrape) {
	t.Helper()
	promtool := os.Getenv(Promtool)
	if promtool == "" {
		t.Logf("%s is not set: pages are not evaluated", Promtool)
		return
	}
	values := map[string][]float64{} // by series, of the scrapes that it is in
	first := map[string]int{}
	add := func(series string, at int, value float64) {
		if _, known := first[series]; !known {
			first[series] = at
		}
		for first[series]+len(values[series]) < at {
			values[series] = append(values[series], missing)
		}
		values[series] = append(values[series], value)
	}
	for at, scrape := range scrapes {
		for instance, text := range scrape {
			up := 0.0
			for _, line := range sample.FindAllStringSubmatch(text, -1) {
				value, err := strconv.ParseFloat(line[3], 64)
				if err != nil {
					t.Fatalf("%s: %v", line[0], err)
				}
				if strings.HasSuffix(line[1], "_timestamp_seconds") {
					value -= float64(time.Now().Unix()) // promtool's time begins at 0
				}
				labels := fmt.Sprintf(`job="ballast",instance="%s"`, instance)
				if line[2] != "" {
					labels += "," + line[2]
				}
				add(line[1]+"{"+labels+"}", at, value)
				up = 1
			}
			add(fmt.Sprintf(`up{job="ballast",instance="%s"}`, instance), at, up)
		}
	}
	evaluate(t, promtool, when, want, inputSeries(values, first, len(scrapes)), time.Duration(len(scrapes)-1+lastScrapes)*scrapeInterval)
}

// missing is a sample that a scrape did not have.
const missing = -1e300

// inputSeries are series as promtool reads them.
func inputSeries(values map[string][]float64, first map[string]int, scrapes int) (series []map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		list := values[name]
		words := slices.Repeat([]string{"_"}, first[name])
		for _, value := range list {
			words = append(words, written(value))
		}
		if first[name]+len(list) == scrapes { // it goes on
			last, step := list[len(list)-1], 0.0
			if metric, _, _ := strings.Cut(name, "{"); strings.HasSuffix(metric, "_total") && scrapes > 1 {
				if step = last; len(list) > 1 && list[len(list)-2] != missing {
					step = last - list[len(list)-2]
				}
			}
			words[len(words)-1] = fmt.Sprintf("%s+%sx%d", written(last), written(max(0, step)), lastScrapes)
		}
		series = append(series, map[string]string{"series": name, "values": strings.Join(words, " ")})
	}
	return series
}

func written(value float64) string {
	if value == missing {
		return "_"
	}
	return strconv.FormatFloat(value, 'f', -1, 64)
}

func evaluate(t testing.TB, promtool, when string, want []string, series []map[string]string, at time.Duration) {
	t.Helper()
	samples := []map[string]any{}
	for _, name := range want {
		samples = append(samples, map[string]any{"labels": fmt.Sprintf(`{alertname="%s"}`, name), "value": 1})
	}
	expression := `ALERTS{severity="page", alertstate="firing"}`
	if len(want) == 0 {
		expression = fmt.Sprintf("count_over_time(%s[%s])", expression, at+scrapeInterval)
	}
	text, err := yaml.Marshal(map[string]any{
		"rule_files": []string{filepath.Join(Root(), "deploy/prometheus/ballast.rules.yml")}, "evaluation_interval": scrapeInterval.String(),
		"tests": []any{map[string]any{"interval": scrapeInterval.String(), "input_series": series, "promql_expr_test": []any{map[string]any{
			"expr": "group by (alertname) (" + expression + ")", "eval_time": at.String(), "exp_samples": samples}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "pages.yml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if output, err := exec.Command(promtool, "test", "rules", path).CombinedOutput(); err != nil {
		t.Errorf("%s: pages are not %q: %v\n%s", when, want, err, output)
	}
}
