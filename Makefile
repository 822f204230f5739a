# Ballast: build, test and demonstrate. `make` lists the targets.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS   += --no-print-directory

# Debian's Go is older than go.mod asks for; it fetches the right one from the module proxy when it is allowed to.
export GOTOOLCHAIN := auto
export BPF2GO_CC := clang-19
export BPF2GO_STRIP := llvm-strip-19
# asm/types.h is in a folder named after the machine that compiles; what comes out is the same on all.
export BPF2GO_CFLAGS := -O2 -g -Wall -Werror -mcpu=v3 -I$(CURDIR)/bpf -I/usr/include/$(shell uname -m)-linux-gnu
export PATH := $(PATH):/usr/local/go/bin:/usr/local/sbin:/usr/sbin:/sbin

VERSION  := $(shell git describe --tags --match 'v[0-9]*' --always --dirty 2>/dev/null || echo unknown)
SUDO     := $(if $(filter 0,$(shell id -u)),,sudo)
# a package for each BPF program
PROGRAMS := $(addprefix internal/linux/,lb server checkroute link bfd segment) internal/lab/bench/wrapper
API      := internal/api/ballastv1
STAMP    := bin/.generated
# enumerations of the model, as the BPF programs read them
CHOICES  := bpf/wire/choices.h
SOURCES  := $(wildcard $(API)/*.proto $(API)/doc.go bpf/*.c bpf/*/*.h bpf/*/*/*.h internal/linux/lb/choices/*.go) internal/model/enums.go $(shell grep -l '^//go:generate' $(addsuffix /*.go,$(PROGRAMS)))
# begin first, so that no core waits for them alone
LONGEST  := ./internal/linux/server ./internal/daemon ./internal/linux/lb
RACE     := ./internal/api/... ./internal/cli/... ./internal/daemon/... ./internal/kube/... ./internal/config/... ./internal/plan/... ./internal/store/... ./internal/pki/... ./internal/lab/sim ./pkg/quiclb ./pkg/sessionticket
FUZZ     ?= 4000x
# tests that read a daemon's metrics, which promtool then checks, too
METRICS  := TestCountersAreServedToPrometheus|TestALoadBalancerTakesTheNewestState|TestAnAgentTakesTunnelsOf|TestRootIsServedOnASocket|Pages?$$|RoutineDoesNot|TestTheVIPFollows|TestTheFirstTierNotices|TestANetworkFunctionSends|TestFaultsOfAClusterPage
# of test/kernels/boot; make test takes the oldest
KERNELS  ?= 6.1 6.12 newest arm64-6.12
# not a tool of go.mod: the product's list of modules would name it and what it needs
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

# Generated files that somebody removed are made again although the stamp is newer than the sources.
ifneq ($(words $(wildcard $(addsuffix /*_bpfel.o,$(PROGRAMS)) $(API)/*.pb.go $(API)/*/*.connect.go $(CHOICES))),9)
.PHONY: $(STAMP)
endif

.PHONY: help deps generate build packages results evidence compare compare-ipvs demo lint test test-long test-mutants test-kernels test-kernels-long test-cards test-packages test-kubernetes test-kubernetes-ipvs bench sim clean need-root

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# command or file -> Debian package that has it
TOOLS := clang-19:clang-19 llvm-strip-19:llvm-19 /usr/include/bpf/bpf_helpers.h:libbpf-dev /usr/include/linux/bpf.h:linux-libc-dev \
	gcc:gcc /usr/include/stdlib.h:libc6-dev nginx:nginx-light mptcpize:mptcpize wrk:wrk iperf3:iperf3 ethtool:ethtool ip:iproute2 protoc:protobuf-compiler /usr/include/google/protobuf/duration.proto:libprotobuf-dev openssl:openssl curl:curl \
	/etc/ssl/certs/ca-certificates.crt:ca-certificates git:git nft:nftables
KERNEL_TOOLS := qemu-system-x86_64:qemu-system-x86 /usr/share/keyrings/debian-archive-keyring.gpg:debian-archive-keyring setpriv:util-linux
BACKPORTS := deb http://deb.debian.org/debian bookworm-backports main

deps: ## install what is missing (Debian 12 packages; starts no service)
	@missing=()
	for tool in $(TOOLS); do
	  command -v "$${tool%%:*}" >/dev/null || [[ -f $${tool%%:*} ]] || missing+=("$${tool#*:}")
	done
	go_version=$$(GOTOOLCHAIN=local go env GOVERSION 2>/dev/null || true)
	[[ $$go_version =~ ^go1\.(2[1-9]|[3-9][0-9]) ]] || missing+=(golang-go)
	if [[ $${#missing[@]} -eq 0 ]]; then
	  echo "deps: nothing is missing"
	else
	  echo "deps: installing $${missing[*]}"
	  $(SUDO) $(MAKE) install-packages PACKAGES="$${missing[*]}"
	fi
	go version

# Runs as root. Services of new packages must not start now nor with the machine: policy-rc.d forbids it while apt runs.
.PHONY: install-packages
install-packages:
	@apt-get update -q
	release=
	if [[ " $(PACKAGES) " == *" golang-go "* ]]; then
	  candidate=$$(apt-cache policy golang-go | sed -n 's/.*Candidate: *\([0-9]*:\)\?//p')
	  if [[ ! $$candidate =~ ^1\.(2[1-9]|[3-9][0-9]) ]]; then
	    echo "deps: Go $$candidate is too old to fetch a newer one: adding bookworm-backports"
	    echo "$(BACKPORTS)" > /etc/apt/sources.list.d/bookworm-backports.list
	    apt-get update -q
	    release="-t bookworm-backports"
	  fi
	fi
	policy=/usr/sbin/policy-rc.d
	if [[ -e $$policy ]]; then mv $$policy $$policy.before-ballast; fi
	trap 'rm -f $$policy; if [[ -e $$policy.before-ballast ]]; then mv $$policy.before-ballast $$policy; fi' EXIT
	printf '#!/bin/sh\nexit 101\n' > $$policy
	chmod +x $$policy
	packages="$(PACKAGES)"
	export DEBIAN_FRONTEND=noninteractive
	apt-get install -q -y --no-install-recommends $${packages/golang-go/}
	if [[ " $$packages " == *" golang-go "* ]]; then apt-get install -q -y --no-install-recommends $$release golang-go; fi
	for service in nginx-light:nginx apache2:apache2 haproxy:haproxy dovecot-imapd:dovecot redis-server:redis-server bird2:bird frr:frr keepalived:keepalived; do
	  if [[ " $$packages " == *" $${service%%:*} "* ]]; then update-rc.d $${service#*:} disable; fi
	done

generate: $(STAMP) ## compile the BPF programs and the control protocol, if their sources changed

$(STAMP): $(SOURCES) go.mod
	@echo "generate: compile BPF with $(BPF2GO_CC) and the control protocol with protoc"
	go generate $(addprefix ./,$(PROGRAMS) $(API))
	mkdir -p $(@D) && touch $@

build: generate ## make bin/ballast, bin/ballast-lab, and what servers preload: bin/ballast-quic.so, bin/ballast-ticket.so
	CGO_ENABLED=0 go build -trimpath -ldflags "-X main.version=$(VERSION)" -o bin/ ./cmd/...
	for library in quic ticket; do
	  gcc -O2 -Wall -Wextra -Werror -shared -fPIC -fvisibility=hidden -o bin/ballast-$$library.so preload/$$library.c
	done

results: deps build ## all experiments of the simulator, with plots, in bin/results; records the figures' values
	bin/ballast-lab sim report -o bin/results --markdown bin/results/results.md all beyond-
	UPDATE_FIGURES=$(CURDIR)/bin/results/results.json go test -count=1 -run TestRecordedValuesAreOfTheFiguresClaims ./internal/lab/papers

packages: TOOLS += aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu /usr/aarch64-linux-gnu/include/stdlib.h:libc6-dev-arm64-cross
packages: deps build ## .deb, .rpm and OCI images for amd64 and arm64, and the chart, in bin/packages
	deploy/packages/build

demo: deps build need-root ## servers and load balancers come and go under load; watch which connections break
	bin/ballast-lab run churn --live

compare: TOOLS += haproxy:haproxy /usr/lib/nginx/modules/ngx_stream_module.so:libnginx-mod-stream
compare: deps build need-root ## Ballast, HAProxy, nginx, kube-proxy (if it is built) and nftables through the same events, in bin/compare; COMPARE=--short: 8 minutes
	bin/ballast-lab compare --directory bin/compare $(COMPARE)

compare-ipvs: TOOLS += $(KERNEL_TOOLS)
compare-ipvs: deps build ## IPVS and Ballast through the same events on Debian's kernel 6.12, in QEMU; prints the tables
	folder=$$(mktemp -d)
	trap 'rm -rf "$$folder"' EXIT
	cp bin/ballast bin/ballast-lab "$$folder/"
	TOOLS=1 MEMORY=3072 LIMIT=3600 test/kernels/boot 6.12 "$$folder" \
	  'modprobe -a ip_vs ip_vs_mh ip_vs_wlc && ./ballast-lab compare --short --only ipvs-mh,ipvs-wlc,cookie $(COMPARE)'

test: TOOLS += $(KERNEL_TOOLS)
test: deps build need-root ## everything: lint, unit tests, races, BPF programs, short fuzzing, end to end
	@$(MAKE) lint
	echo "== unit tests, and BPF programs at the kernel's edge"
	go test -count=1 -timeout 30m -p 3 $(LONGEST) $$(go list ./... | grep -v $(LONGEST:./%=-e %$$) -e /internal/tidy -e /test/) # most wait
	echo "== repository rules"
	go test -count=1 ./internal/tidy/...
	echo "== the chart of Kubernetes, rendered"
	go -C deploy/kubernetes/tools test -count=1 ./...
	echo "== races"
	go test -race -short ./internal/daemon $(RACE)
	echo "== libraries that servers preload"
	go test -count=1 ./test/preload
	echo "== fuzzing, $(FUZZ) each"
	$(MAKE) fuzz
	echo "== end to end, in network namespaces"
	go test -count=1 -timeout 30m -parallel 4 ./test/e2e/... # most wait
	echo "== other kernels, in QEMU"
	test/kernels/matrix 6.1
	echo "== all tests passed"

lint: TOOLS += shellcheck:shellcheck codespell:codespell clang-format-19:clang-format-19
lint: deps generate ## format, go vet, staticcheck, shell scripts, spelling
	@echo "== gofmt"
	unformatted=$$(gofmt -l cmd deploy internal pkg test)
	if [[ -n $$unformatted ]]; then echo "not formatted: $$unformatted: run gofmt -w"; exit 1; fi
	echo "== clang-format"
	clang-format-19 --dry-run -Werror $$(git ls-files '*.c' '*.h')
	echo "== go vet"
	go vet ./...
	echo "== staticcheck"
	go run $(STATICCHECK) ./...
	echo "== shellcheck"
	shellcheck --severity=warning $$(grep -rlIE --exclude='*.go' '^#!.*[/ ](ba)?sh$$' .ci deploy test)
	echo "== codespell"
	codespell --quiet-level 3

# go test fuzzes one target at a time. Minimising what is merely new can take a minute; it is cut short. Inputs are counted, not seconds:
# when time is up in the midst of an input, go test fails with "context deadline exceeded" now and then.
.PHONY: fuzz
fuzz:
	@grep -rHoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' cmd internal pkg test | while IFS=: read -r file target; do
	  go test "./$$(dirname "$$file")" -run '^$$' -fuzz "^$${target#func }\$$" -fuzztime $(FUZZ) -fuzzminimizetime 20x
	done

test-mutants: deps need-root ## break production code, one patch of test/mutants at a time, and expect the tests named there to fail
	test/mutants/run

test-long: TOOLS += mmdebstrap:mmdebstrap lintian:lintian rpm:rpm chromium:chromium python3:python3 /usr/lib/python3.11/ensurepip/__init__.py:python3-venv cargo:cargo-web \
	/usr/sbin/apache2:apache2 haproxy:haproxy keepalived:keepalived arping:iputils-arping dovecot:dovecot-imapd node:nodejs npm:npm curl:curl redis-server:redis-server bird:bird2 /usr/lib/frr/bgpd:frr
test-long: deps build need-root ## the same with full-length idle times, bulk transfers and fifty times the fuzzing
	$(MAKE) test FUZZ=200000x
	test/reuse
	BALLAST_LONG=1 BALLAST_NGINX=$$(test/nginx-quic) BALLAST_AIOQUIC=$$(test/aioquic) BALLAST_ENVOY=$$(test/envoy) BALLAST_QUINN=$$(test/quinn) go test -count=1 -timeout 4h ./test/e2e/...
	BALLAST_LONG=1 BALLAST_RUSTLS=$$(test/rustls) go test -count=1 ./test/preload
	BALLAST_SERVERS=$$(test/openssl-1.1) go test -count=1 ./test/preload
	BALLAST_SERVERS=$$(dirname $$(test/nginx-quic)) go test -count=1 -run Nginx ./test/preload
	BALLAST_LONG=1 go test -count=1 -timeout 2h -run 'TestWhatControllersTellIsLinearizableWhateverHappensToThem|TestAFleetGoesFromOneControllerToThree' ./internal/controller
	BALLAST_LONG=1 go test -count=1 -timeout 2h ./internal/daemon/lb/replication
	BALLAST_LONG=1 go test -count=1 ./test/console
	$(MAKE) packages
	BALLAST_LONG=1 go test -count=1 -timeout 1h ./test/packages/archives
	export BALLAST_PROMTOOL=$$(test/promtool)
	BALLAST_LONG=1 go test -count=1 ./internal/metricstest
	go test -count=1 -run '$(METRICS)' ./internal/daemon ./internal/controller ./internal/kube

test-kernels test-kernels-long: TOOLS += $(KERNEL_TOOLS) qemu-system-aarch64:qemu-system-arm

test-packages: TOOLS += $(KERNEL_TOOLS) qemu-system-aarch64:qemu-system-arm mmdebstrap:mmdebstrap systemd-nspawn:systemd-container
test-packages: packages need-root ## on Debian 12 and 13 with systemd: docs/start/first-fleet.md on seven machines; install, use, upgrade and purge, also in QEMU
	BALLAST_LONG=1 SUITE=bookworm go test -count=1 -timeout 30m ./test/machines
	BALLAST_LONG=1 SUITE=trixie go test -count=1 -timeout 30m ./test/machines
	test/packages/matrix 6.1 6.12 arm64-6.12

test-kernels: deps build ## on Debian's kernels 6.1, 6.12, the newest and arm64, in QEMU: programs, a fleet, doctor. One: KERNELS=6.1
	CARDS=1 test/kernels/matrix $(KERNELS)

test-cards: TOOLS += $(KERNEL_TOOLS)
test-cards: deps build need-root ## fleets on virtio with offloads, vmxnet3, e1000e and igb, in QEMU: modes, two cards, VLAN, jumbo frames; hours. One: CARDS=e1000e:6.12-full:auto:generic
	test/kernels/cards $(CARDS)

test-kernels-long: deps build ## all tests of the programs, and lab run churn, on these kernels: hours
	test/kernels/matrix --long $(KERNELS)

KUBERNETES := v1.37.2
# the version that Helm renders for where it sees no cluster
HELM_FLAGS := -s -w $(foreach package,lint/rules chartutil,-X helm.sh/helm/v3/pkg/$(package).k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/$(package).k8sVersionMinor=37)

CLUSTER := go -C test/kubernetes/cluster build -trimpath -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$(KUBERNETES)" -o $(CURDIR)/bin/cluster .

test-kubernetes: TOOLS += iptables:iptables
test-kubernetes: deps build need-root ## Services and Gateways of a real API server and kube-proxy, and a rollout of all; builds them once, for 6 minutes of CPU time
	$(CLUSTER)
	go -C test/kubernetes/conformance test -c -trimpath -o $(CURDIR)/bin/conformance .
	go -C test/kubernetes/conformance build -trimpath -o $(CURDIR)/bin/ sigs.k8s.io/gateway-api/conformance/echo-basic
	go -C deploy/kubernetes/tools build -trimpath -ldflags "$(HELM_FLAGS)" -o $(CURDIR)/bin/helm helm.sh/helm/v3/cmd/helm
	go -C deploy/kubernetes/tools test -count=1 ./...
	BALLAST_ROLLOUT=$(CURDIR)/bin/rollout go test -count=1 -timeout 30m -v ./test/kubernetes

test-kubernetes-ipvs: TOOLS += $(KERNEL_TOOLS)
test-kubernetes-ipvs: deps build ## Services in front of kube-proxy's mode ipvs, on Debian's kernel 6.1, in QEMU
	$(CLUSTER)
	folder=$$(mktemp -d -t ballast-ipvs-XXXXXX)
	trap 'rm -rf "$$folder"' EXIT
	mkdir -p "$$folder/bin" "$$folder/test/kubernetes"
	cp bin/ballast bin/ballast-kube bin/cluster "$$folder/bin/"
	CGO_ENABLED=0 go test -trimpath -c -o "$$folder/test/kubernetes/kubernetes.test" ./test/kubernetes
	TOOLS=1 MEMORY=4096 test/kernels/boot 6.1 "$$folder" \
	  'modprobe -a ip_vs ip_vs_rr && export BALLAST_PATIENCE=5 && cd test/kubernetes && ./kubernetes.test -test.run IPVS -test.v'

bench: deps build need-root ## nanoseconds per packet, as a table
	bin/ballast-lab bench datapath

evidence: ## what the tests promise, which reports of others they repeat, and the command that runs each
	@go run ./internal/tidy/evidence

sim: build ## every claim of the papers, simulated, as a table
	bin/ballast-lab sim run all --seeds 10

clean: ## remove everything that make made, and what a lab left behind
	@if [[ -x bin/ballast-lab ]]; then bin/ballast-lab clean || echo "clean: lab clean failed, continuing"; fi
	rm -rf bin $(CHOICES) $(API)/*.pb.go $(API)/ballastv1connect $(addsuffix /*_bpfe?.*,$(PROGRAMS))

need-root:
	@[[ $$(id -u) -eq 0 ]] || { echo "network namespaces and BPF need root: sudo -E make ..."; exit 1; }

# Recipes are scripts: one shell per recipe.
.ONESHELL:
