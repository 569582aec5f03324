// Package schematest proves that internal/schema says of any schema and any object what upstream says. A generator
// makes both, the corpus brings real ones, and every one goes through the calls that upstream's create and
// update strategies make. It has tests only: what it is measured against may not be imported elsewhere.
//
// How much of upstream the tests reach, of what any caller comes to (testdata/unreached.txt lists the rest, with reasons):
//
//	TEST_SEEDS=4000 go test -coverprofile=cover.out -coverpkg=$(echo \
//	  k8s.io/apiextensions-apiserver/pkg/apiserver/{schema,schema/{pruning,defaulting,listtype,objectmeta,cel},validation} \
//	  k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation \
//	  k8s.io/kube-openapi/pkg/validation/validate | tr ' ' ,) ./internal/schema/schematest
//	TEST_COVERPROFILE=$PWD/cover.out go test -v -run TestReached ./internal/schema/schematest
package schematest
