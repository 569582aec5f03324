package schema

import (
	"strings"

	"k8s.io/kube-openapi/pkg/validation/strfmt"
)

// Format identifies a format that is checked. 0 means no format. Values below textFormat are formats of numbers. For
// formats of strings, the value is textFormat plus an index into textFormats.
type format uint8

const (
	FormatOther format = iota + 1 // a format that has no check; see asWritten
	FormatInt32
	formatInt64
	FormatFloat
	formatDouble
	TextFormat
)

var textFormats = []struct {
	name  string // without dashes, which are ignored
	valid func(string) bool
}{
	{"datetime", isDateTime},
	{"byte", isBase64},
	{"date", strfmt.IsDate},
	{"duration", strfmt.IsDuration},
	{"cidr", registered("cidr")},
	{"email", strfmt.IsEmail},
	{"hostname", strfmt.IsHostname},
	{"ipv4", registered("ipv4")},
	{"ipv6", registered("ipv6")},
	{"mac", registered("mac")},
	{"password", func(string) bool { return true }},
	{"uri", registered("uri")},
	{"uuid", strfmt.IsUUID},
	{"uuid3", strfmt.IsUUID3},
	{"uuid4", strfmt.IsUUID4},
	{"uuid5", strfmt.IsUUID5},
	{"bsonobjectid", strfmt.IsBSONObjectID},
	{"creditcard", registered("creditcard")},
	{"hexcolor", registered("hexcolor")},
	{"isbn", registered("isbn")},
	{"isbn10", registered("isbn10")},
	{"isbn13", registered("isbn13")},
	{"rgbcolor", registered("rgbcolor")},
	{"ssn", registered("ssn")},
	{"k8sshortname", strfmt.IsShortName},
	{"k8slongname", strfmt.IsLongName},
}

// registered returns the check for a format. kube-openapi exports such checks only by the name of the format.
func registered(name string) func(string) bool {
	return func(s string) bool { return strfmt.Default.Validates(name, s) }
}

// FormatOf returns the format of n if this format is checked for values of n's type. Otherwise it returns 0.
func FormatOf(n *Node) format {
	if n.Format == "" {
		return 0
	}
	typ := n.Type
	if n.IntOrString {
		typ = ""
	}
	switch typ {
	case "", "string":
		return TextFormatOf(n)
	case "integer":
		switch n.Format {
		case "int32":
			return FormatInt32
		case "int64":
			return formatInt64
		}
	case "number":
		switch n.Format {
		case "float":
			return FormatFloat
		case "double":
			return formatDouble
		}
	}
	return 0
}

// TextFormatOf returns the format of n if it is a known format of strings. Otherwise it returns 0.
func TextFormatOf(n *Node) format {
	name := strings.ReplaceAll(n.Format, "-", "")
	for i := range textFormats {
		if textFormats[i].name == name {
			return TextFormat + format(i)
		}
	}
	return 0
}

// IsNumeric reports whether f limits the range of numbers.
func (f format) IsNumeric() bool { return f >= FormatInt32 && f < TextFormat }

// CheckedFormat returns the format that the validation of n checks. It returns 0 if no format is checked.
func (n *Node) CheckedFormat() format {
	if n.Checks == nil {
		return 0
	}
	return n.Checks.Format
}

// Valid reports whether a string has the format f. Formats of numbers accept all strings.
func (f format) Valid(s string) bool {
	return f < TextFormat || textFormats[f-TextFormat].valid(s)
}

// isDateTime checks the usual form of a timestamp itself and passes other forms to strfmt.
func isDateTime(s string) bool {
	const form = "dddd-dd-ddTdd:dd:ddZ"
	if len(s) != len(form) {
		return strfmt.IsDateTime(s)
	}
	for i := range form {
		if digit := s[i]-'0' <= 9; form[i] == 'd' != digit || !digit && form[i] != s[i] {
			return strfmt.IsDateTime(s)
		}
	}
	month, day := s[5:7], s[8:10]
	if month < "01" || month > "12" || day < "01" || day > "28" {
		return strfmt.IsDateTime(s)
	}
	return s[11:13] <= "23" && s[14:16] <= "59" && s[17:19] <= "59"
}

// isBase64 requires the standard alphabet with padding, and at least one byte.
func isBase64(s string) bool {
	if len(s) == 0 || len(s)%4 != 0 {
		return false
	}
	end := len(s)
	for range 2 {
		if s[end-1] == '=' {
			end--
		}
	}
	for i := range end {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '+', c == '/':
		default:
			return false
		}
	}
	return true
}
