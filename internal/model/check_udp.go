package model

import (
	"encoding/hex"
	"fmt"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

// MaxCheckBytes bounds what a check by UDP sends, so that no network fragments it.
const MaxCheckBytes = 1200

const hexPrefix = "hex:"

var (
	dnsTypes = map[string]dnsmessage.Type{"A": dnsmessage.TypeA, "AAAA": dnsmessage.TypeAAAA, "CNAME": dnsmessage.TypeCNAME, "MX": dnsmessage.TypeMX,
		"NS": dnsmessage.TypeNS, "PTR": dnsmessage.TypePTR, "SOA": dnsmessage.TypeSOA, "SRV": dnsmessage.TypeSRV, "TXT": dnsmessage.TypeTXT}
	dnsCodes = map[string]dnsmessage.RCode{"NOERROR": dnsmessage.RCodeSuccess, "FORMERR": dnsmessage.RCodeFormatError, "SERVFAIL": dnsmessage.RCodeServerFailure,
		"NXDOMAIN": dnsmessage.RCodeNameError, "NOTIMP": dnsmessage.RCodeNotImplemented, "REFUSED": dnsmessage.RCodeRefused}
)

// CheckBytes returns what a text of Health.Send, Expect or Contains stands for: itself, or what follows "hex:" in hexadecimal.
func CheckBytes(text string) []byte {
	if digits, ok := strings.CutPrefix(text, hexPrefix); ok {
		decoded, err := hex.DecodeString(digits)
		if err != nil {
			return nil // validation has refused it
		}
		return decoded
	}
	return []byte(text)
}

// DNSQuestion reads Health.Query: a name and a type, A without.
func DNSQuestion(query string) (name dnsmessage.Name, kind dnsmessage.Type, err error) {
	words := strings.Fields(query)
	if len(words) == 0 || len(words) > 2 {
		return name, 0, fmt.Errorf("%q is not a name and a type", query)
	}
	kind = dnsmessage.TypeA
	if len(words) == 2 {
		var known bool
		if kind, known = dnsTypes[strings.ToUpper(words[1])]; !known {
			return name, 0, fmt.Errorf("type %q is not known", words[1])
		}
	}
	if name, err = dnsmessage.NewName(strings.TrimSuffix(words[0], ".") + "."); err != nil {
		return name, 0, fmt.Errorf("%q is not a name: %w", words[0], err)
	}
	_, err = (&dnsmessage.Message{Questions: []dnsmessage.Question{{Name: name, Type: kind, Class: dnsmessage.ClassINET}}}).Pack()
	return name, kind, err
}

// DNSCode returns the response code of Health.RCode; empty: NOERROR.
func DNSCode(name string) dnsmessage.RCode { return dnsCodes[strings.ToUpper(name)] }

// DNSCodeName is the inverse of DNSCode; others are numbers.
func DNSCodeName(code dnsmessage.RCode) string {
	for name, known := range dnsCodes {
		if known == code {
			return name
		}
	}
	return fmt.Sprint(uint16(code))
}

// ByUDP reports whether the check sends datagrams.
func (c Check) ByUDP() bool { return c == CheckQUIC || c == CheckUDP || c == CheckDNS }

// validateUDP refuses what cannot be sent, or never be answered.
func (h *Health) validateUDP(path string, found *findings) {
	for _, field := range []struct{ key, text string }{{"send", h.Send}, {"expect", h.Expect}, {"contains", h.Contains}} {
		if digits, ok := strings.CutPrefix(field.text, hexPrefix); ok {
			if _, err := hex.DecodeString(digits); err != nil {
				found.add(path+"."+field.key, "give two hexadecimal digits for each byte", "%q: %v", field.text, err)
				continue
			}
		}
		if n := len(CheckBytes(field.text)); n > MaxCheckBytes {
			found.add(path+"."+field.key, fmt.Sprintf("use at most %d", MaxCheckBytes), "it is %d bytes long", n)
		}
	}
	if h.Check == CheckUDP && len(CheckBytes(h.Send)) == 0 {
		found.add(path+".send", "give a text, or hex: and digits, that servers answer", "missing: servers answer no empty datagram")
	}
	if h.Check != CheckDNS {
		return
	}
	if _, _, err := DNSQuestion(h.Query); err != nil {
		found.add(path+".query", "give a name and a type, as example.com A", "%v", err)
	}
	if _, known := dnsCodes[strings.ToUpper(h.RCode)]; h.RCode != "" && !known {
		found.add(path+".rcode", "use NOERROR, FORMERR, SERVFAIL, NXDOMAIN, NOTIMP or REFUSED", "%q is not a response code", h.RCode)
	}
}
