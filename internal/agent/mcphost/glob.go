package mcphost

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// maxPattern bounds a pattern of either kind, in bytes.
const maxPattern = 1 << 10

// globPattern makes a regular expression of a glob, so that one engine that cannot be
// made to run away matches both. "*" and "?" stay within a name, "**" does not, "[ab]"
// and "{a,b}" choose, "\" takes the next character as it is. A pattern without "/"
// matches the name alone, wherever it is.
func globPattern(glob string) (*regexp.Regexp, error) {
	if glob == "" || len(glob) > maxPattern {
		return nil, fmt.Errorf("must have between 1 and %d bytes", maxPattern)
	}
	var out strings.Builder
	out.WriteString(`\A(?s:`)
	if !strings.Contains(glob, "/") {
		out.WriteString(`(?:.*/)?`)
	}
	braces := 0
	runes := []rune(strings.TrimPrefix(glob, "./"))
	for i := 0; i < len(runes); i++ {
		rest := string(runes[i:min(i+3, len(runes))])
		switch r := runes[i]; {
		case rest == "**/":
			out.WriteString(`(?:.*/)?`)
			i += 2
		case strings.HasPrefix(rest, "**"):
			out.WriteString(`.*`)
			i++
		case r == '*':
			out.WriteString(`[^/]*`)
		case r == '?':
			out.WriteString(`[^/]`)
		case r == '{':
			braces++
			out.WriteString(`(?:`)
		case r == ',' && braces > 0:
			out.WriteString(`|`)
		case r == '}' && braces > 0:
			braces--
			out.WriteString(`)`)
		case r == '[':
			n, err := class(&out, runes[i+1:])
			if err != nil {
				return nil, err
			}
			i += n
		case r == '\\' && i+1 < len(runes):
			i++
			out.WriteString(regexp.QuoteMeta(string(runes[i])))
		default:
			out.WriteString(regexp.QuoteMeta(string(r)))
		}
	}
	if braces > 0 {
		return nil, errors.New("a \"{\" is not closed")
	}
	out.WriteString(`)\z`)
	return regexp.Compile(out.String())
}

// class writes the class of characters that runes begin with, after its "[", and says
// how many of them it took.
func class(out *strings.Builder, runes []rune) (int, error) {
	i := 0
	out.WriteString("[")
	if i < len(runes) && (runes[i] == '!' || runes[i] == '^') {
		out.WriteString("^/")
		i++
	}
	for first := true; i < len(runes); i, first = i+1, false {
		switch r := runes[i]; {
		case r == ']' && !first:
			out.WriteString("]")
			return i + 1, nil
		case r == '-':
			out.WriteString("-")
		default:
			out.WriteString(regexp.QuoteMeta(string(r)))
		}
	}
	return 0, errors.New("a \"[\" is not closed")
}
