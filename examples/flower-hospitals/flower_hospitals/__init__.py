"""Four emergency departments and one question: is it sepsis?"""
