package cli

import (
	"bytes"
	"os"
	"testing"

	apps "k8s.io/api/apps/v1"
	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// What a reader applies are objects without mistakes, and options that the program has.
func TestTheDeploymentIsOneThatRuns(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/kubernetes/ballast-kube.yaml")
	if err != nil {
		t.Fatal(err)
	}
	documents := yaml.NewDocumentDecoder(readCloser{bytes.NewReader(text)})
	var deployment apps.Deployment
	var budget policy.PodDisruptionBudget
	for _, object := range []any{&deployment, &budget} {
		document := make([]byte, len(text))
		n, err := documents.Read(document)
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.UnmarshalStrict(document[:n], object); err != nil {
			t.Fatal(err)
		}
	}
	pod := &deployment.Spec.Template.Spec
	root := Root("1.2.3")
	if err := root.ParseFlags(pod.Containers[0].Args); err != nil {
		t.Fatal(err)
	}
	var mounted bool
	for _, mount := range pod.Containers[0].VolumeMounts {
		mounted = mounted || mount.MountPath == root.Flag("tls-dir").Value.String() && mount.Name == pod.Volumes[0].Name
	}
	if !mounted {
		t.Errorf("nothing is mounted at %s", root.Flag("tls-dir").Value)
	}
	if listen := root.Flag("listen").Value.String(); listen != ":9438" || pod.Containers[0].Ports[0].ContainerPort != 9438 {
		t.Errorf("it listens at %s, and probes ask port %d", listen, pod.Containers[0].Ports[0].ContainerPort)
	}
	for _, labels := range []map[string]string{deployment.Spec.Selector.MatchLabels, budget.Spec.Selector.MatchLabels} {
		if len(labels) != 1 || deployment.Spec.Template.Labels["app"] != labels["app"] {
			t.Errorf("a selector has %v, and pods %v", labels, deployment.Spec.Template.Labels)
		}
	}
}

type readCloser struct{ *bytes.Reader }

func (readCloser) Close() error { return nil }
