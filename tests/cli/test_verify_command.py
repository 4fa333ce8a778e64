import json


def test_a_valid_file_is_told_with_what_it_holds(fedcore, mean_fed):
    ran = fedcore("verify", "mean.fed")
    assert (ran.code, ran.out) == (0, "mean.fed: traced: 4 operations, 1 function\n")


def test_one_wrong_file_makes_the_exit_code_1_and_shows_its_line(fedcore, mean_fed, tmp_path):
    (tmp_path / "wrong.fed").write_text(mean_fed.read_text().replace("return %3", "return %9"))
    ran = fedcore("verify", "mean.fed", "wrong.fed")
    assert ran.code == 1
    assert "mean.fed: traced" in ran.out
    assert "it returns %9, which is not bound" in ran.out


def test_json_tells_each_file(fedcore, mean_fed, tmp_path):
    (tmp_path / "wrong.fed").write_text("fedcore 9 traced\n")
    ran = fedcore("verify", "mean.fed", "wrong.fed", "--format", "json")
    good, bad = json.loads(ran.out)
    assert (good["valid"], len(good["digest"])) == (True, 64)
    assert bad["valid"] is False


def test_a_file_that_is_not_there_is_a_usage_error(fedcore):
    ran = fedcore("verify", "nothing.fed")
    assert ran.code == 2
    assert "cannot read nothing.fed: No such file or directory" in ran.err
