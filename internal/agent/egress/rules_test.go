package egress_test

import (
	"net/netip"
	"strings"
	"testing"

	"turnpike/internal/agent/egress"
)

func TestCanonical(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"example.com": "example.com", "EXAMPLE.Com.": "example.com", "a-b.c1": "a-b.c1", "xn--bcher-kva.example": "xn--bcher-kva.example",
		"1.2.3.example": "1.2.3.example", "localhost": "localhost", strings.Repeat("a", 63) + ".b": strings.Repeat("a", 63) + ".b",
		"": "", ".": "", "..": "", "a..b": "", ".a": "", "a..": "", "a b": "", "a_b.c": "", "-a.b": "", "a-.b": "", "a.b-": "",
		"a@b.c": "", "user:pw@b.c": "", "a.b:80": "", "a/b": "", "a\x00.b": "", "bücher.example": "", "a.b%2e": "", "[::1]": "", "::1": "",
		strings.Repeat("a", 64) + ".b": "", strings.Repeat("a.", 127) + "b": "",
		// Addresses, in whatever spelling some resolver takes for one.
		"127.0.0.1": "", "127.0.0.1.": "", "2130706433": "", "0x7f000001": "", "0X7F.1": "", "0177.0.0.1": "", "127.1": "", "0x": "", "a.1": "", "a.0xf": "",
	} {
		if got, ok := egress.Canonical(in); got != want || ok != (want != "") {
			t.Errorf("%q: got %q, %t", in, got, ok)
		}
	}
}

func TestRules(t *testing.T) {
	t.Parallel()
	list := egress.Limited([]string{"allowed.test", "*.below.test", "127.0.0.1"}, nil)
	every := egress.Limited(nil, map[string]string{"single:80": "x:1", "127.0.0.1:8080": "x:1"})
	none := egress.Limited([]string{}, map[string]string{"allowed.test:80": "x:1"})
	for _, row := range []struct {
		rules egress.Rules
		name  string
		want  bool
	}{
		{list, "allowed.test", true}, {list, "a.below.test", true}, {list, "a.b.below.test", true}, {list, "127.0.0.1", true},
		{list, "below.test", false}, {list, ".below.test", false}, {list, "allowed.test.evil", false}, {list, "notallowed.test", false},
		{list, "a.allowed.test", false}, {list, "abelow.test", false}, {list, "test", false}, {list, "127.0.0.2", false},
		{every, "anything.example", true}, {every, "localhost", false}, {every, "metadata", false}, {every, "single", true},
		{every, "127.0.0.1", true}, {every, "127.0.0.2", false},
		{none, "allowed.test", false}, {egress.Rules{}, "allowed.test", false},
	} {
		if got := egress.Allows(row.rules, row.name); got != row.want {
			t.Errorf("%+v allows %q: %t", row.rules, row.name, got)
		}
	}
	hosts := func(from, to string) egress.Rules { return egress.Rules{Hosts: map[string]string{from: to}} }
	for _, bad := range []egress.Rules{
		{Domains: []string{"Upper.test"}}, {Domains: []string{"dot.test."}}, {Domains: []string{"*"}}, {Domains: []string{"*.*.test"}},
		{Domains: []string{"a.*.test"}}, {Domains: []string{"192.0.2.1"}}, {Domains: []string{"10"}}, {Domains: []string{"https://a.test"}}, {Domains: []string{""}},
		hosts("a.test", "b:1"), hosts("a.test:", "b:1"), hosts("a.test:0", "b:1"), hosts("a.test:080", "b:1"), hosts("a.test:65536", "b:1"),
		hosts("192.0.2.1:80", "b:1"), hosts("127.64.0.1:80", "b:1"), hosts("127.0.0.1:53", "b:1"), hosts("A.test:80", "b:1"), hosts("a.test:80", "b"), hosts("a.test:80", ":1"),
	} {
		if _, err := egress.New(bad, nil); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
}

func TestPublicAddresses(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]bool{
		"1.1.1.1": true, "198.41.0.4": true, "2606:4700::1111": true, "2001:503:ba3e::2:30": true, "64:ff9b::1.1.1.1": true,
		"0.0.0.0": false, "10.0.0.1": false, "100.64.0.1": false, "127.0.0.1": false, "169.254.169.254": false, "172.16.0.1": false,
		"172.31.255.255": false, "192.168.1.1": false, "192.0.2.1": false, "198.18.0.1": false, "224.0.0.1": false, "240.0.0.1": false, "255.255.255.255": false,
		"::": false, "::1": false, "fe80::1": false, "fe80::1%eth0": false, "fec0::1": false, "fd00:ec2::254": false, "fc00::1": false, "ff02::1": false,
		"::ffff:1.1.1.1": false, "::ffff:127.0.0.1": false, "::127.0.0.1": false, "64:ff9b::127.0.0.1": false, "64:ff9b::a9fe:a9fe": false,
		"64:ff9b:1::1": false, "2002:7f00:1::": false, "2001:0:1::1": false, "2001:db8::1": false, "100::1": false,
	} {
		if got := egress.Public(netip.MustParseAddr(in)); got != want {
			t.Errorf("%s: %t", in, got)
		}
	}
	if egress.Public(netip.Addr{}) {
		t.Error("no address is public")
	}
}
