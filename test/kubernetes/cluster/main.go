// Command cluster is the part of Kubernetes that tests of Ballast need, as one program: the API server, kube-proxy, their etcd, and kubectl. It is a
// module of its own, so that none of what they need comes into Ballast's.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
)

func main() {
	part := filepath.Base(os.Args[0]) // of a link
	if part != "kubectl" {
		if len(os.Args) < 2 {
			usage()
		}
		part = os.Args[1]
		os.Args = append([]string{part}, os.Args[2:]...)
	}
	switch part {
	case "etcd":
		etcdmain.Main(os.Args)
	case "kube-apiserver":
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	case "kube-proxy":
		os.Exit(cli.Run(proxy.NewProxyCommand()))
	case "kubectl":
		os.Exit(cli.Run(kubectl.NewDefaultKubectlCommand()))
	default:
		usage()
	}
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: cluster etcd|kube-apiserver|kube-proxy|kubectl OPTION ...")
	os.Exit(2)
}
