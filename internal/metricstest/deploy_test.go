package metricstest

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/ballast-lb/ballast/internal/daemon/listen"
)

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(Root(), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// known are the metrics that daemons have, with their labels, those of the process and of Go included.
func known(t *testing.T) map[string][]string {
	t.Helper()
	found := Declared(t)
	if len(found) < 60 {
		t.Fatalf("only %d metrics are found", len(found))
	}
	answer := httptest.NewRecorder()
	listen.Metrics(listen.About{Look: func() listen.Condition { return listen.Condition{} }}).ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	for _, name := range regexp.MustCompile(`(?m)^# TYPE (\w+) `).FindAllStringSubmatch(answer.Body.String(), -1) {
		if !strings.HasPrefix(name[1], "ballast_") {
			found[name[1]] = nil
		}
	}
	found["up"] = nil // Prometheus' own
	return found
}

// verdicts are those of both data paths.
func verdicts(t *testing.T) (names []string) {
	t.Helper()
	for _, header := range []string{"bpf/lb/state/verdict.h", "bpf/server/verdict.h"} {
		for _, name := range regexp.MustCompile(`(?m)^\t([A-Z]+_[A-Z_]+),`).FindAllStringSubmatch(read(t, header), -1) {
			names = append(names, strings.ToLower(name[1]))
		}
	}
	return names
}

var (
	metricName = regexp.MustCompile(`\b(?:ballast|process|go)_[a-z0-9_]+\b|\bup\b`)
	selector   = regexp.MustCompile(`\b([a-z][a-z0-9_]+)\{([^}]*)\}`)
	matcher    = regexp.MustCompile(`([a-z_]+)(?:=~|!=|!~|=)"([^"]*)"`)
	grouping   = regexp.MustCompile(`\b(?:by|on|ignoring|group_left) \(([^)]*)\)`)
	choice     = regexp.MustCompile(`^(.*)\((.*)\)$`)
)

// wrong says what an expression asks for that no daemon tells.
func wrong(expression string, known map[string][]string, verdicts []string) (problems []string) {
	all := []string{"job", "instance"}
	bare := regexp.MustCompile(`"[^"]*"`).ReplaceAllString(expression, `""`)
	names := metricName.FindAllString(grouping.ReplaceAllString(bare, ""), -1)
	if len(names) == 0 {
		problems = append(problems, "it names no metric")
	}
	for _, name := range names {
		labels, ok := known[name]
		if !ok {
			problems = append(problems, "there is no metric "+name)
		}
		all = append(all, labels...)
	}
	for _, s := range selector.FindAllStringSubmatch(expression, -1) {
		for _, m := range matcher.FindAllStringSubmatch(s[2], -1) {
			if label := m[1]; label != "job" && label != "instance" && !slices.Contains(known[s[1]], label) {
				problems = append(problems, fmt.Sprintf("%s has no label %s", s[1], label))
			}
			if m[1] != "verdict" {
				continue
			}
			prefix, choices := "", m[2]
			if c := choice.FindStringSubmatch(choices); c != nil {
				prefix, choices = c[1], c[2]
			}
			for _, one := range strings.Split(choices, "|") {
				if pattern := regexp.MustCompile("^" + prefix + one + "$"); !slices.ContainsFunc(verdicts, pattern.MatchString) {
					problems = append(problems, "there is no verdict "+prefix+one)
				}
			}
		}
	}
	for _, g := range grouping.FindAllStringSubmatch(expression, -1) {
		for _, label := range strings.FieldsFunc(g[1], func(r rune) bool { return r == ',' || r == ' ' }) {
			if !slices.Contains(all, label) {
				problems = append(problems, "no metric of it has the label "+label)
			}
		}
	}
	return problems
}

func TestWhatNoDaemonTellsIsFoundInExpressions(t *testing.T) {
	known, verdicts := known(t), verdicts(t)
	for expression, want := range map[string]string{
		`rate(ballast_packets_total{verdict="forwarded_new",service=~"$service"}[5m])`: "",
		`sum by (job, epoch) (ballast_control_key_connections) > 0`:                    "",
		`ballast_redy == 0`:                                              "there is no metric ballast_redy",
		`sum(verdict)`:                                                   "it names no metric",
		`ballast_ready{service="web"} == 0`:                              "ballast_ready has no label service",
		`sum by (server) (ballast_service_taking_servers)`:               "no metric of it has the label server",
		`ballast_packets_total{verdict=~"forwarded_(new|nwe)"}`:          "there is no verdict forwarded_nwe",
		`ballast_packets_total{verdict=~"dropped_table_full|dropped_x"}`: "there is no verdict dropped_x",
	} {
		if have := strings.Join(wrong(expression, known, verdicts), "; "); have != want && !(want != "" && strings.Contains(have, want)) {
			t.Errorf("%s: %q, want %q", expression, have, want)
		}
	}
}

// alert is one rule.
type alert struct {
	Alert       string            `yaml:"alert"`
	Expression  string            `yaml:"expr"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

func alerts(t *testing.T) (list []alert) {
	t.Helper()
	var file struct {
		Groups []struct {
			Rules []alert `yaml:"rules"`
		} `yaml:"groups"`
	}
	if err := yaml.Unmarshal([]byte(read(t, "deploy/prometheus/ballast.rules.yml")), &file); err != nil {
		t.Fatal(err)
	}
	for _, group := range file.Groups {
		list = append(list, group.Rules...)
	}
	return list
}

func TestAlertsAskForWhatDaemonsTellAndHaveARemedyAndATest(t *testing.T) {
	known, verdicts := known(t), verdicts(t)
	var tests struct {
		Tests []struct {
			Rules []struct {
				Alert    string `yaml:"alertname"`
				Expected []any  `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		} `yaml:"tests"`
	}
	if err := yaml.Unmarshal([]byte(read(t, "deploy/prometheus/ballast.rules.test.yml")), &tests); err != nil {
		t.Fatal(err)
	}
	tested := map[string]bool{}
	for _, test := range tests.Tests {
		for _, rule := range test.Rules {
			tested[rule.Alert] = tested[rule.Alert] || len(rule.Expected) > 0
		}
	}
	for _, rule := range alerts(t) {
		for _, problem := range wrong(rule.Expression, known, verdicts) {
			t.Errorf("%s: %s", rule.Alert, problem)
		}
		if len(rule.Annotations["description"]) < 40 {
			t.Errorf("%s has the description %q: say what to do", rule.Alert, rule.Annotations["description"])
		}
		if !tested[rule.Alert] {
			t.Errorf("no test makes %s fire", rule.Alert)
		}
		if severity := rule.Labels["severity"]; severity != "page" && severity != "ticket" || rule.Annotations["summary"] == "" {
			t.Errorf("%s has severity %q and summary %q", rule.Alert, severity, rule.Annotations["summary"])
		}
	}
}

func TestTheDashboardAsksForWhatDaemonsTell(t *testing.T) {
	known, verdicts := known(t), verdicts(t)
	var dashboard struct {
		Panels []struct {
			ID      int    `json:"id"`
			Title   string `json:"title"`
			Type    string `json:"type"`
			Targets []struct {
				Expression string `json:"expr"`
				Legend     string `json:"legendFormat"`
			} `json:"targets"`
		} `json:"panels"`
		Templating struct {
			List []struct {
				Type  string `json:"type"`
				Query string `json:"query"`
			} `json:"list"`
		} `json:"templating"`
	}
	if err := json.Unmarshal([]byte(read(t, "deploy/grafana/ballast.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	var asked []string
	ids := map[int]bool{}
	for _, panel := range dashboard.Panels {
		if ids[panel.ID] || panel.Type != "row" && len(panel.Targets) == 0 {
			t.Errorf("panel %q has the id of another, or asks for nothing", panel.Title)
		}
		ids[panel.ID] = true
		for _, target := range panel.Targets {
			asked = append(asked, target.Expression)
			for _, problem := range wrong(target.Expression, known, verdicts) {
				t.Errorf("panel %q: %s", panel.Title, problem)
			}
		}
	}
	for _, variable := range dashboard.Templating.List {
		if variable.Type != "query" {
			continue
		}
		asked = append(asked, variable.Query)
		for _, problem := range wrong(variable.Query, known, verdicts) {
			t.Errorf("variable %s: %s", variable.Query, problem)
		}
	}
	if len(asked) < 30 {
		t.Errorf("only %d expressions are found", len(asked))
	}
	if promtool := os.Getenv(Promtool); promtool != "" {
		expectParsed(t, promtool, asked)
	}
}

// expectParsed has promtool read expressions of the dashboard as rules.
func expectParsed(t *testing.T, promtool string, expressions []string) {
	t.Helper()
	rules := []map[string]string{}
	for _, expression := range expressions {
		if !strings.HasPrefix(expression, "label_values(") { // Grafana's own
			rules = append(rules, map[string]string{"record": fmt.Sprintf("dashboard:%d", len(rules)), "expr": strings.ReplaceAll(expression, "$__rate_interval", "1m")})
		}
	}
	text, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": rules}}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "rules.yml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if output, err := exec.Command(promtool, "check", "rules", path).CombinedOutput(); err != nil {
		t.Errorf("the dashboard: %v\n%s", err, output)
	}
}

// Documents speak of metrics that there are.
func TestDocumentsNameMetricsThatThereAre(t *testing.T) {
	declared := Declared(t)
	documents, err := filepath.Glob(filepath.Join(Root(), "docs/*/*.md"))
	if err != nil || len(documents) < 10 {
		t.Fatal(documents, err)
	}
	for _, name := range documents {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, metric := range regexp.MustCompile("`(ballast_[a-z0-9_]+)").FindAllStringSubmatch(string(text), -1) {
			if _, ok := declared[metric[1]]; !ok {
				t.Errorf("%s: there is no metric %s", filepath.Base(name), metric[1])
			}
		}
	}
}

func TestAlertsFireWhenTheyMustByPromtool(t *testing.T) {
	promtool := os.Getenv(Promtool)
	if promtool == "" {
		if os.Getenv("BALLAST_LONG") != "" {
			t.Fatalf("%s is not set: it is the path that test/promtool prints", Promtool)
		}
		t.Skipf("%s is not set: test/promtool fetches it", Promtool)
	}
	for _, arguments := range [][]string{{"check", "rules", "ballast.rules.yml"}, {"check", "config", "--syntax-only", "prometheus.yml"}, {"test", "rules", "ballast.rules.test.yml"}} {
		command := exec.Command(promtool, arguments...)
		command.Dir = filepath.Join(Root(), "deploy/prometheus")
		if arguments[0] == "test" {
			command.Dir = withoutDescriptions(t)
		}
		if output, err := command.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(arguments, " "), err, output)
		}
	}
}

// withoutDescriptions is a directory with the rules and their tests, which need not repeat what to do.
func withoutDescriptions(t *testing.T) string {
	t.Helper()
	var rules map[string]any
	if err := yaml.Unmarshal([]byte(read(t, "deploy/prometheus/ballast.rules.yml")), &rules); err != nil {
		t.Fatal(err)
	}
	for _, group := range rules["groups"].([]any) {
		for _, rule := range group.(map[string]any)["rules"].([]any) {
			delete(rule.(map[string]any)["annotations"].(map[string]any), "description")
		}
	}
	text, err := yaml.Marshal(rules)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"ballast.rules.yml": string(text), "ballast.rules.test.yml": read(t, "deploy/prometheus/ballast.rules.test.yml")} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Rules that page are tried on what running daemons say, besides the series of ballast.rules.test.yml.
func TestEveryPageIsFiredByAFaultOfARunningDaemon(t *testing.T) {
	tried := ""
	for _, name := range []string{"daemon/pages_test.go", "daemon/agent_gateways_test.go", "daemon/lb_all_down_test.go", "daemon/lb_tier_test.go", "daemon/lb_predecessors_test.go", "controller/pages_test.go", "kube/pages_test.go"} {
		tried += read(t, "internal/"+name)
	}
	for _, rule := range alerts(t) {
		if rule.Labels["severity"] == "page" && !strings.Contains(tried, `"`+rule.Alert+`"`) {
			t.Errorf("no fault of a daemon makes %s fire: add it to pages_test.go of its package", rule.Alert)
		}
	}
}
