package model

import (
	"fmt"
	"net/url"
	"strings"
)

func (l *Load) validate(path string, found *findings) {
	checkChoice(path+".source", loadNames, l.Source, found)
	checkDuration(path+".interval", l.Interval, MinLoadInterval, MaxLoadInterval, found)
	if l.Classes > MaxClasses {
		found.add(path+".classes", fmt.Sprintf("use 0 to %d", MaxClasses), "%d is out of range", l.Classes)
	}
	switch {
	case l.Source != LoadEndpoint && l.Endpoint != "":
		found.add(path+".endpoint", "remove it, or use source: endpoint", "source %s asks no endpoint", l.Source)
	case l.Source == LoadEndpoint:
		at, err := url.Parse(l.Endpoint)
		if err != nil || (at.Scheme != "http" && at.Scheme != "https") || at.Host == "" {
			found.add(path+".endpoint", "write it like http://:8080/load (each server is asked) or http://host:8080/load", "%q is not an HTTP URL", l.Endpoint)
		}
	}
}

func (h *Health) validate(path string, found *findings) {
	checkChoice(path+".check", checkNames, h.Check, found)
	checkChoice(path+".all_down", allDownNames, h.AllDown, found)
	checkDuration(path+".interval", h.Interval, MinCheckTime, MaxCheckTime, found)
	if checkDuration(path+".timeout", h.Timeout, MinCheckTime, MaxCheckTime, found); h.Interval >= MinCheckTime && h.Timeout > h.Interval {
		found.add(path+".timeout", "make it shorter, or the interval longer", "%s is longer than the interval of %s", h.Timeout, h.Interval)
	}
	if h.Rise == 0 || h.Fall == 0 {
		found.add(path, "use 1 or more", "rise and fall count checks")
	}
	if h.Deadline < 0 {
		found.add(path+".deadline", "use 0 for never", "%s is negative", h.Deadline)
	}
	only := func(key string, given bool, kinds ...Check) {
		for _, kind := range kinds {
			if h.Check == kind || !given {
				return
			}
		}
		if given {
			found.add(path+"."+key, "remove it", "check %s has no use for it", h.Check)
		}
	}
	only("path", h.Path != "", CheckHTTP, CheckHTTPS)
	only("host", h.Host != "", CheckHTTP, CheckHTTPS, CheckTLS, CheckGRPC, CheckGRPCS)
	only("service", h.Service != "", CheckGRPC, CheckGRPCS)
	only("command", len(h.Command) > 0, CheckExec)
	only("send", h.Send != "", CheckUDP)
	only("expect", h.Expect != "", CheckUDP)
	only("contains", h.Contains != "", CheckUDP)
	only("query", h.Query != "", CheckDNS)
	only("rcode", h.RCode != "", CheckDNS)
	h.validateUDP(path, found)
	if h.Check == CheckExec && len(h.Command) == 0 {
		found.add(path+".command", "write it like [/usr/local/bin/check, --fast]", "missing: check exec runs a program")
	}
	if h.Path != "" && !strings.HasPrefix(h.Path, "/") {
		found.add(path+".path", "begin it with /", "%q is not a path", h.Path)
	}
}

func checkDuration(path string, d, least, most Duration, found *findings) {
	if d < least || d > most {
		found.add(path, fmt.Sprintf("use %s to %s", least, most), "%s is out of range", d)
	}
}
