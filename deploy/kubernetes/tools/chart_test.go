// Package tools renders the chart with Helm's own library, which the product does not link.
package tools

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"helm.sh/helm/v3/pkg/strvals"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

const (
	dir     = "../chart"
	version = "v1.37.2"
)

var update = flag.Bool("update", false, "write ../ballast.yaml")

// render renders the chart as `helm install` would.
func render(t *testing.T, values ...string) (text string, err error) {
	t.Helper()
	chart, err := loader.LoadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	given := map[string]any{}
	for _, value := range values {
		if err := strvals.ParseInto(value, given); err != nil {
			t.Fatal(err)
		}
	}
	install := action.NewInstall(&action.Configuration{})
	install.ClientOnly, install.DryRun, install.ReleaseName, install.Namespace = true, true, "ballast", "ballast"
	install.KubeVersion = &chartutil.KubeVersion{Version: version, Major: "1", Minor: "37"}
	release, err := install.Run(chart, given)
	if err != nil {
		return "", err
	}
	return release.Manifest, nil
}

// objects decodes what is rendered into the types of the API, strictly.
func objects(t *testing.T, manifest string) (found map[string]any) {
	t.Helper()
	kinds := map[string]func() any{
		"Namespace": func() any { return &core.Namespace{} }, "ConfigMap": func() any { return &core.ConfigMap{} }, "Service": func() any { return &core.Service{} },
		"ServiceAccount": func() any { return &core.ServiceAccount{} }, "DaemonSet": func() any { return &apps.DaemonSet{} }, "StatefulSet": func() any { return &apps.StatefulSet{} },
		"Deployment": func() any { return &apps.Deployment{} }, "PodDisruptionBudget": func() any { return &policy.PodDisruptionBudget{} },
		"NetworkPolicy": func() any { return &networking.NetworkPolicy{} }, "ClusterRole": func() any { return &rbac.ClusterRole{} },
		"ClusterRoleBinding": func() any { return &rbac.ClusterRoleBinding{} }, "Role": func() any { return &rbac.Role{} }, "RoleBinding": func() any { return &rbac.RoleBinding{} },
		"PodMonitor": func() any { return &monitoring.PodMonitor{} }, "PrometheusRule": func() any { return &monitoring.PrometheusRule{} },
	}
	found = map[string]any{}
	for document := range strings.SplitSeq(manifest, "\n---\n") {
		var head struct {
			Kind     string
			Metadata struct{ Name string }
		}
		if err := yaml.Unmarshal([]byte(document), &head); err != nil {
			t.Fatalf("%v: %s", err, document)
		}
		if head.Kind == "" { // comments alone
			continue
		}
		if kinds[head.Kind] == nil {
			t.Fatalf("what is a %s?", head.Kind)
		}
		object := kinds[head.Kind]()
		if err := yaml.UnmarshalStrict([]byte(document), object); err != nil {
			t.Errorf("%s %s: %v", head.Kind, head.Metadata.Name, err)
		}
		found[head.Kind+" "+head.Metadata.Name] = object
	}
	return found
}

var usual = []string{"vips=203.0.113.0/28", "l2.interface=eth0"}

func TestTheChartHasNothingToLint(t *testing.T) {
	values := map[string]any{}
	for _, value := range usual {
		if err := strvals.ParseInto(value, values); err != nil {
			t.Fatal(err)
		}
	}
	linter := lint.AllWithKubeVersion(dir, values, "ballast", &chartutil.KubeVersion{Version: version, Major: "1", Minor: "37"})
	for _, message := range linter.Messages {
		if message.Severity > support.InfoSev {
			t.Error(message)
		}
	}
}

// Whatever is chosen, objects are those of the API, without a field that it does not have.
func TestRenderedObjectsAreTyped(t *testing.T) {
	for _, more := range [][]string{
		nil,
		{"controller.replicas=1", "kube.replicas=1", "node.interfaces={eth0,eth1}", "image.tag=1.2.3", "imagePullSecrets[0].name=mine", "networkPolicy.enabled=false"},
		{"l2=null", "bgp.as=64600", "bgp.neighbor_as=64512", "bgp.neighbors={10.0.0.1}", "node.bgpSecret=bgp", "bgp.password_file=/etc/ballast/bgp/bgp.password"},
		{"vips=", "pools[0].name=public", "pools[0].addresses={203.0.113.0/28,2001:db8::/112}", "controller.storage.storageClassName=fast", "node.detach=true"},
		{"podMonitor.enabled=true", "prometheusRule.enabled=true", "podMonitor.labels.release=prometheus", "node.extraArgs.lb={--verbose}", "controller.extraArgs={--verbose}", "kube.extraArgs={--verbose}", "kube.gateways=true"},
	} {
		text, err := render(t, append(slices.Clone(usual), more...)...)
		if err != nil {
			t.Errorf("%v: %v", more, err)
			continue
		}
		objects(t, text)
	}
}

// Controllers read sources of servers, spread over nodes and ask name servers as chosen.
func TestControllersHaveWhatIsChosen(t *testing.T) {
	text, err := render(t, append(slices.Clone(usual), "controller.sources.files=lists", "controller.sources.consul=agents", "controller.spread=DoNotSchedule",
		"controller.dnsPolicy=None", "controller.dnsConfig.nameservers={10.0.0.53}")...)
	if err != nil {
		t.Fatal(err)
	}
	set := objects(t, text)["StatefulSet ballast-controller"].(*apps.StatefulSet)
	pod := set.Spec.Template.Spec
	at := map[string]string{}
	for _, c := range pod.Containers {
		for _, mount := range c.VolumeMounts {
			for _, v := range pod.Volumes {
				if v.Name == mount.Name && strings.HasPrefix(mount.MountPath, "/etc/ballast/sources/") && mount.ReadOnly {
					if v.ConfigMap != nil {
						at[c.Name+" "+mount.MountPath] = "ConfigMap " + v.ConfigMap.Name
					} else if v.Secret != nil && *v.Secret.DefaultMode == 0o440 {
						at[c.Name+" "+mount.MountPath] = "Secret " + v.Secret.SecretName
					}
				}
			}
		}
	}
	if len(at) != 2 || at["controller /etc/ballast/sources/files"] != "ConfigMap lists" || at["controller /etc/ballast/sources/consul"] != "Secret agents" {
		t.Error(at)
	}
	if *set.Spec.Replicas != 3 || pod.TopologySpreadConstraints[0].WhenUnsatisfiable != core.DoNotSchedule || pod.DNSPolicy != core.DNSNone || pod.DNSConfig.Nameservers[0] != "10.0.0.53" {
		t.Errorf("%d, %+v, %s %v", *set.Spec.Replicas, pod.TopologySpreadConstraints, pod.DNSPolicy, pod.DNSConfig)
	}
}

// Promise: Helm evicts and updates no two controllers, and no two nodes, at once: each waits until the one before is ready, which is that it does its work.
func TestUpdatesGoOneByOne(t *testing.T) {
	text, err := render(t, usual...)
	if err != nil {
		t.Fatal(err)
	}
	found := objects(t, text)
	for _, name := range []string{"ballast-controller", "ballast-kube"} {
		if budget := found["PodDisruptionBudget "+name].(*policy.PodDisruptionBudget).Spec; budget.MaxUnavailable.IntValue() != 1 || budget.MinAvailable != nil {
			t.Errorf("%s: %+v", name, budget)
		}
	}
	set := found["StatefulSet ballast-controller"].(*apps.StatefulSet).Spec
	node := found["DaemonSet ballast-node"].(*apps.DaemonSet).Spec
	if kind := set.UpdateStrategy.Type; kind != "" && kind != apps.RollingUpdateStatefulSetStrategyType {
		t.Error(kind)
	}
	if node.UpdateStrategy.RollingUpdate.MaxUnavailable.IntValue() != 1 {
		t.Error(node.UpdateStrategy)
	}
	for _, c := range append(slices.Clone(node.Template.Spec.Containers), set.Template.Spec.Containers[0], found["Deployment ballast-kube"].(*apps.Deployment).Spec.Template.Spec.Containers[0]) {
		if c.ReadinessProbe == nil || c.ReadinessProbe.HTTPGet.Path != "/healthz" && c.ReadinessProbe.HTTPGet.Path != "/readyz" {
			t.Errorf("%s: %+v", c.Name, c.ReadinessProbe)
		}
	}
}

// Each account may change its lease and no other.
func TestLeasesAreNamed(t *testing.T) {
	for _, role := range []string{"ballast-kube", "ballast-controller"} {
		text, err := render(t, usual...)
		if err != nil {
			t.Fatal(err)
		}
		for _, rule := range objects(t, text)["Role "+role].(*rbac.Role).Rules {
			if slices.Contains(rule.Resources, "leases") && len(rule.ResourceNames) == 0 && !slices.Equal(rule.Verbs, []string{"create"}) {
				t.Errorf("%s: %+v", role, rule)
			}
		}
		if arguments := objects(t, text)["Deployment ballast-kube"].(*apps.Deployment).Spec.Template.Spec.Containers[0].Args; !slices.Contains(arguments, "--lease=ballast-kube") {
			t.Error(arguments)
		}
	}
}

// What cannot work is refused before anything is installed, with what to write.
func TestValuesThatCannotWorkAreRefused(t *testing.T) {
	for wanted, values := range map[string][]string{
		"no addresses for Services":          {"l2.interface=eth0"},
		"nobody would announce":              {"vips=203.0.113.0/28"},
		"a node announces by one of them":    {"vips=203.0.113.0/28", "l2.interface=eth0", "bgp.as=1"},
		"it needs as and neighbors":          {"vips=203.0.113.0/28", "bgp.as=1"},
		"no name of the Secret with it":      {"vips=203.0.113.0/28", "bgp.as=1", "bgp.neighbors={10.0.0.1}", "bgp.password_file=/etc/ballast/bgp/p"},
		"names no key of it":                 {"vips=203.0.113.0/28", "bgp.as=1", "bgp.neighbors={10.0.0.1}", "node.bgpSecret=bgp"},
		"'consull' not allowed":              {"vips=203.0.113.0/28", "l2.interface=eth0", "controller.sources.consull=agents"},
		"/controller/sources/files":          {"vips=203.0.113.0/28", "l2.interface=eth0", "controller.sources.files=My_Lists"},
		"value must be one of 'ScheduleAny":  {"vips=203.0.113.0/28", "l2.interface=eth0", "controller.spread=never"},
		"two places for one thing":           {"vips=203.0.113.0/28", "l2.interface=eth0", "pools[0].name=a", "pools[0].addresses={203.0.113.9}"},
		"'nodes' not allowed":                {"vips=203.0.113.0/28", "l2.interface=eth0", "nodes=3"},
		"value must be one of 1, 3":          {"vips=203.0.113.0/28", "l2.interface=eth0", "controller.replicas=2"},
		"value must be one of 'auto'":        {"vips=203.0.113.0/28", "l2.interface=eth0", "node.xdpMode=fast"},
		"'https://203.0.113.0' does not":     {"vips=https://203.0.113.0", "l2.interface=eth0"},
		"'neighbours' not allowed":           {"vips=203.0.113.0/28", "bgp.as=1", "bgp.neighbours={10.0.0.1}"},
		"/node/updateStrategy/rollingUpdate": {"vips=203.0.113.0/28", "l2.interface=eth0", "node.updateStrategy.rollingUpdate.maxSurge=1"},
	} {
		if _, err := render(t, values...); err == nil || !strings.Contains(err.Error(), wanted) {
			t.Errorf("%v: %v, and not %q", values, err, wanted)
		}
	}
}

// Pods of nodes have exactly these rights: no container is privileged, and init containers have no capability.
func TestPodsHaveTheLeastRights(t *testing.T) {
	text, err := render(t, usual...)
	if err != nil {
		t.Fatal(err)
	}
	found := objects(t, text)
	node := found["DaemonSet ballast-node"].(*apps.DaemonSet).Spec.Template.Spec
	controller := found["StatefulSet ballast-controller"].(*apps.StatefulSet).Spec.Template.Spec
	kube := found["Deployment ballast-kube"].(*apps.Deployment).Spec.Template.Spec
	for i, pod := range []core.PodSpec{node, controller, kube} {
		for _, c := range append(slices.Clone(pod.InitContainers), pod.Containers...) {
			var added []string
			for _, capability := range c.SecurityContext.Capabilities.Add {
				added = append(added, string(capability))
			}
			if i == 0 && (c.Name == "lb" || c.Name == "agent") {
				if got := strings.Join(added, " "); got != "NET_ADMIN NET_RAW SYS_ADMIN" {
					t.Errorf("%s has %s", c.Name, got)
				}
			} else if len(added) > 0 {
				t.Errorf("%s has %v", c.Name, added)
			}
			if c.SecurityContext.Privileged != nil || *c.SecurityContext.AllowPrivilegeEscalation || !*c.SecurityContext.ReadOnlyRootFilesystem ||
				!slices.Contains(c.SecurityContext.Capabilities.Drop, "ALL") {
				t.Errorf("%s: %+v", c.Name, c.SecurityContext)
			}
			if pod.SecurityContext == nil && c.SecurityContext.SeccompProfile == nil || pod.SecurityContext != nil && pod.SecurityContext.SeccompProfile == nil {
				t.Errorf("%s may make every system call", c.Name)
			}
			if c.Image != "registry.example.net/ballast:0.1.0" && c.Image != "registry.example.net/ballast-kube:0.1.0" {
				t.Errorf("%s: image %s", c.Name, c.Image)
			}
		}
		if i > 0 && (!*pod.SecurityContext.RunAsNonRoot || pod.HostNetwork) {
			t.Errorf("%+v", pod.SecurityContext)
		}
	}
	if *node.AutomountServiceAccountToken {
		t.Error("nodes' pods have a token of the API server")
	}
	if found["DaemonSet ballast-node"].(*apps.DaemonSet).Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.IntValue() != 1 {
		t.Error("more than one node is updated at once")
	}
}

// Who has no Helm applies what the chart renders.
func TestThePlainManifestsAreTheChart(t *testing.T) {
	const path = "../ballast.yaml"
	text, err := render(t, "vips=203.0.113.0/28", "l2.interface=eth0")
	if err != nil {
		t.Fatal(err)
	}
	var plain bytes.Buffer
	fmt.Fprint(&plain, `# Ballast in a cluster, for those without Helm: what deploy/kubernetes/chart renders. Change here the image's registry, vips (203.0.113.0/28) and the
# interface (eth0), then: kubectl apply -n ballast -f ballast.yaml
apiVersion: v1
kind: Namespace
metadata:
  name: ballast
  labels: {pod-security.kubernetes.io/enforce: privileged}
`)
	text = strings.NewReplacer("    app.kubernetes.io/managed-by: Helm\n", "", "        app.kubernetes.io/managed-by: Helm\n", "").Replace(text)
	for document := range strings.SplitSeq(strings.TrimPrefix(text, "---\n"), "\n---\n") {
		fmt.Fprintf(&plain, "---\n%s\n", strings.TrimSpace(document))
	}
	objects(t, plain.String())
	if *update {
		if err := os.WriteFile(path, plain.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	there, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(there, plain.Bytes()) {
		t.Errorf("%s is not what the chart renders (%v): go -C deploy/kubernetes/tools test -run Plain -update", path, err)
	}
}
