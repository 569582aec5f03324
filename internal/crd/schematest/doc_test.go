// Package schematest compares internal/crd with upstream for random schemas and objects. A generator creates
// schemas and objects, and the corpus provides real ones. The tests make the same calls for each object as upstream's
// create and update strategies. The package has tests only, because other packages must not import upstream's
// implementation.
//
// The following commands measure the share of upstream's reachable statements that the tests reach.
// testdata/unreached.txt lists the unreachable statements, with reasons.
//
//	TEST_SEEDS=4000 go test -coverprofile=cover.out -coverpkg=$(echo \
//	  k8s.io/apiextensions-apiserver/pkg/apiserver/{schema,validation} \
//	  k8s.io/apiextensions-apiserver/pkg/apiserver/schema/{pruning,defaulting,listtype,objectmeta,cel} \
//	  k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation \
//	  k8s.io/kube-openapi/pkg/validation/validate | tr ' ' ,) ./internal/crd/schematest
//	TEST_COVERPROFILE=$PWD/cover.out go test -v -run TestReached ./internal/crd/schematest
package schematest
